"""A host over SSH: its connection is that of link.py, and the hosts of a cluster may share a gateway."""

from __future__ import annotations

from .cluster import Address, ClusterConfig, parse_host
from .link import Gateway, Link, connection
from .remote import RemoteHost


def ssh_hosts(conf: ClusterConfig) -> tuple[SSHHost, ...]:
    """Return the hosts of a cluster, not connected yet; they share the gateway."""
    gateway = None
    if conf.gateway is not None and (address := parse_host(conf.gateway)) is not None:
        gateway = Gateway(address, conf)
    return tuple(SSHHost(address, conf, gateway) for address in conf.addresses())


class SSHHost(RemoteHost):
    """A machine at the other end of a permanent SSH connection, which is opened when it is first needed."""

    def __init__(self, address: Address, conf: ClusterConfig, gateway: Gateway | None = None) -> None:
        super().__init__(address.name, connection(address, conf).host, conf.python)
        self._address = address
        self._conf = conf
        self._gateway = gateway

    def close(self) -> None:
        super().close()
        with self._lock:
            if self._gateway is not None:
                self._gateway.leave(self)

    def _open_link(self) -> Link:
        by = self._gateway.enter(self) if self._gateway is not None else None
        return Link(self._address, self._conf, by)
