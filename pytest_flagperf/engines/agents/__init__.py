"""The engine for this machine and SSH hosts: one agent on each host."""
