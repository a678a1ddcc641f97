"""The Locust plugin: options, user classes and web pages."""
