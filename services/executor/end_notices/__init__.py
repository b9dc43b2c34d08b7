"""What announces the end of this machine: a cloud, Slurm or a file. `eflow node --until-notice` (docs/adr/0118).

answers: from an answer to an end, pure. sources: who is asked, and how. watcher: asks again and again, and tells the
executor of each change.
"""
