"""The environments of packages in which ranks run: how they are built on a host, and how changes are found."""
