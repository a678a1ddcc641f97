"""A report's pictures, each a plain description that plotly.js draws in the page and `png` draws as a file."""
