"""Several nodes: what their supervisors and the coordinator say to each other, and how they reach each other."""
