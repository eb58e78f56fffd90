"""Devices and processes: the only folder that depends on how many there are."""
