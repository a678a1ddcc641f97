"""Text sources of chat sessions: generated text and recorded conversations."""
