"""A bad cable: carries a host's frames to the bridge and back, late, and loses some.

Runs apart from the harness, in the machine's own network: between the machine's end of the host's cable and a port of
the bridge that it makes and that goes when it ends. Its standard input is its owner: when that ends, so does this.
Frames travel with the kernel's own header about checksums and segments, so they may be larger than the wire's.
"""

import argparse
import contextlib
import fcntl
import os
import random
import select
import socket
import struct
import subprocess
import time
from collections import deque

PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ALL_PROTOCOLS = 0x0003
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
FRAME = 1 << 17


def cable_end(link: str) -> int:
    """A descriptor that reads what the host sends and sends what is written."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.setsockopt(PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.bind((link, ALL_PROTOCOLS))
    return end.detach()


def bridge_port(name: str, bridge: str) -> int:
    port = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(port, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    subprocess.run(["ip", "link", "set", name, "master", bridge, "up"], check=True)
    return port


def received(end: int) -> bytes:
    """A frame; none from a cable that has just been pulled out."""
    with contextlib.suppress(OSError):
        return os.read(end, FRAME)
    return b""


def carry(ends: tuple[int, int], delay_s: float, loss: float) -> None:
    """Until standard input ends."""
    under_way: deque[tuple[float, int, bytes]] = deque()  # all are late by the same time, so they stay in order
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable = select.select([0, *ends], [], [], wait)[0]
        if 0 in readable and not os.read(0, 1):
            return
        for end, other in (ends, ends[::-1]):
            if end in readable:
                frame = received(end)
                if frame and random.random() >= loss:
                    under_way.append((time.monotonic() + delay_s, other, frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, end, frame = under_way.popleft()
            with contextlib.suppress(OSError):  # a cable that is not plugged in carries nothing
                os.write(end, frame)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("link")
    parser.add_argument("port")
    parser.add_argument("bridge")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds each way")
    parser.add_argument("--loss", type=float, default=0.0, help="the part of all frames that get lost")
    given = parser.parse_args()
    subprocess.run(["ip", "link", "set", given.link, "nomaster"], check=True)
    ends = cable_end(given.link), bridge_port(given.port, given.bridge)
    print("up", flush=True)
    carry(ends, given.delay, given.loss)


if __name__ == "__main__":
    main()
