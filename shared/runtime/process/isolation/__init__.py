"""Processes that see their own folders and processes only, and may use a bounded part of the machine. Linux only.

system_calls.py      namespaces, mounts and rights that Python lacks; which system calls users' code may not make
folder_view.py       the root folder of such a process, and what is added to it later
isolated_process.py  from a fork to such a process; executed as a program, a trial of it
machine_check.py     what this machine cannot enforce
cgroups.py           what any worker may use, with or without namespaces
"""
