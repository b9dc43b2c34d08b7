"""A small GPT as large ones are built, and a script that shards it over GPUs."""
