"""Tests that touch a device, a disk or a link. Each says passed, failed, absent or unknown, and why."""
