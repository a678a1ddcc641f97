"""A cluster on this machine: runs pods of Kubernetes' files in namespaces of the kernel, with its Jobs, Services and policies."""
