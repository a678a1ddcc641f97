"""One run: controller and lifecycle on the master, load on the workers, live figures, Prometheus exporter, virtual clock."""
