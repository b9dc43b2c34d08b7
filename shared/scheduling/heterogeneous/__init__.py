"""One job on GPUs of several types: its step times by type, and how many virtual nodes each GPU carries."""
