"""The workload: sessions as scripts, their texts and data, arrivals, the plan, expected prefix-cache hits."""
