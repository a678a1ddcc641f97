"""Adaptations of Locust, by part of Locust: each is checked at start-up and degrades with a recorded consequence."""
