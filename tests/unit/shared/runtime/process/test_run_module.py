"""Processes of our own run this copy of `elasticflow`; neither its folder nor the current one is an import root."""

import json
import subprocess
import sys
from pathlib import Path

import elasticflow
from elasticflow.shared.runtime.process.run_module import module_command

ROOT = Path(__file__).parents[5]
PROBE = """
import importlib.util, json, sys
import elasticflow
found = [name for name in ("shared", "services", "simulator", "beside") if importlib.util.find_spec(name)]
print(json.dumps([__name__, sys.argv[1:], elasticflow.__file__, sys.path, found]))
"""


def test_a_module_runs_with_this_elasticflow_and_no_import_root_of_ours(tmp_path, monkeypatch):
    modules, project = tmp_path / "modules", tmp_path / "project"
    for folder in (modules, project):
        folder.mkdir()
        (folder / "elasticflow.py").write_text("raise SystemExit('another elasticflow')")
    (modules / "probe.py").write_text(PROBE)
    (project / "beside.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(modules))
    ran = subprocess.run(module_command("probe", "--flag", "x"), cwd=project, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    name, arguments, file, path, found = json.loads(ran.stdout)
    assert (name, arguments, file) == ("__main__", ["--flag", "x"], elasticflow.__file__)
    assert (path[0], found) == (str(modules), [])
    assert not {"", str(project), str(ROOT)} & set(path)


def test_the_command_names_the_module_as_process_lists_show_it():
    assert module_command("elasticflow.services.admission")[0] == sys.executable
    assert module_command("elasticflow.services.admission")[-1] == "elasticflow.services.admission"
