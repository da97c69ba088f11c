"""Metrics, traces and logs: what is declared once and recorded everywhere.

Start at :mod:`poller.telemetry.metrics`.
"""
