"""Modules that commands share."""
