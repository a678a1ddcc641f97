"""Which side is better, by how much, and how sure is that."""
