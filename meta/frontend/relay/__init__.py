"""Relay, the graph language that TVM had until 2025: its text, JSON and parameter files."""
