"""One job on several nodes: each supervisor's part in it, the candidates for its lead, and the coordinator."""
