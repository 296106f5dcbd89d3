"""Watches a program that trains, says what holds it back, and what a change would bring."""
