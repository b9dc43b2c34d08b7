"""Worker and runner processes of one node: started, sent messages, followed and killed. I/O without decisions."""
