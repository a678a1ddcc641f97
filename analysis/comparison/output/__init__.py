"""A comparison as text, tables, a page, JSON and JUnit XML."""
