"""What the attacks of user_code/attacks_on_node.py are aimed at, on the node of a test or a benchmark."""

from pathlib import Path

from tests.training.conftest import Node

MEMORY_LIMIT_BYTES = 512 << 20  # of an attacker
PRIVATE_FILE = Path("/tmp/attack")  # each worker has a /tmp of its own


def targets_of_attacks(node: Node, job_id: str, *, pid: int, nats_address: str, secret: str) -> dict[str, str]:
    """By name of the attack: all but those that fill a real disk. pid: of a process of the executor's user."""
    token_file, logs = node.folder / "run.json", node.launcher.log_file(job_id, 1, 0).parent
    written = (Path(__file__).parent / "x", node.folder / "x", "/usr/x", "/etc/x", PRIVATE_FILE)
    aimed = {
        "read_environments": secret,
        "read_file": token_file,
        "list_folder": node.folder / "checkpoints",
        "write_files": " ".join(map(str, written)),
        "plant_links": f"{logs} {token_file}",
        "end_process": pid,
        "trace_process": pid,
        "write_plan_without_key": nats_address,
    }
    on_the_machine = (
        *("open_files", "enter_user_namespace", "fork_bomb", "memory_bomb", "run_out_of_memory"),
        *("fill_folders_in_memory", "make_empty_files"),
    )
    return {name: str(target) for name, target in aimed.items()} | dict.fromkeys(on_the_machine, "")
