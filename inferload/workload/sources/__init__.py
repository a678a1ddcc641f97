"""Where the text of a chat comes from: made up, or read from a file of conversations."""
