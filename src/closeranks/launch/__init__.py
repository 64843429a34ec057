"""Starting one supervisor per node: under Slurm, Kubernetes and Ray, and by ssh."""
