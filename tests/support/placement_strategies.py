"""Clusters of any shape, and numbers of GPUs that fit into them."""

from hypothesis import strategies as st

from elasticflow.shared.state.topology import Node, Topology


@st.composite
def topologies(draw: st.DrawFn, max_nodes: int = 6, max_gpus_per_node: int = 9) -> Topology:
    """Clusters of rows_that_differ nodes, some without a power of two of GPUs, in racks that nest or in none."""
    num_nodes = draw(st.integers(1, max_nodes))
    return Topology(
        tuple(
            Node(
                f"node-{number}",
                draw(st.integers(1, max_gpus_per_node)),
                sockets=draw(st.integers(1, 3)),
                rack=draw(st.sampled_from(["", "a", "a/1", "a/2", "b/1/x", "b/1/y"])),
            )
            for number in range(num_nodes)
        )
    )


@st.composite
def gpu_counts(draw: st.DrawFn, num_gpus: int, job_ids: tuple[str, ...]) -> dict[str, int]:
    """Powers of two, or 0, for some jobs; their sum is at most `num_gpus`."""
    left, counts = num_gpus, dict[str, int]()
    for job_id in draw(st.permutations(job_ids)):
        fitting = [0] + [2**k for k in range(left.bit_length()) if 2**k <= left]
        counts[job_id] = draw(st.sampled_from(fitting))
        left -= counts[job_id]
    return counts
