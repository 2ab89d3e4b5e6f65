"""A cable with delay and loss, for kernels without netem: `relay.py NAMESPACE DEVICE NAMESPACE DEVICE
DELAY_MS LOSS SEED`. Makes a TAP device in either namespace, says "ready", and carries frames between
them: what leaves the second one comes DELAY_MS later, and of both ways a share LOSS is lost. Ends, and the
devices with it, when stdin does."""
import collections
import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
FRAME_BYTES = 65536
FRAMES_A_TURN = 64


def tap(namespace, device):
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as there:
        if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    return file


def send(file, frame):
    try:
        os.write(file, frame)
    except OSError:
        pass  # a device that is down takes nothing, as a cable that nobody listens at


def main():
    near = tap(*sys.argv[1:3])
    far = tap(*sys.argv[3:5])
    delay_s, loss, draw = float(sys.argv[5]) / 1000, float(sys.argv[6]), random.Random(sys.argv[7])
    late = collections.deque()  # (when, frame) from far to near, in order
    poll = select.poll()
    for file in (sys.stdin.fileno(), near, far):
        poll.register(file, select.POLLIN)
    print("ready", flush=True)
    while True:
        wait_ms = None if not late else max(0.0, (late[0][0] - time.monotonic()) * 1000)
        for file, _ in poll.poll(wait_ms):
            if file == sys.stdin.fileno():
                return
            for _ in range(FRAMES_A_TURN):
                try:
                    frame = os.read(file, FRAME_BYTES)
                except OSError:
                    break
                if draw.random() < loss:
                    continue
                if file == near:
                    send(far, frame)
                else:
                    late.append((time.monotonic() + delay_s, frame))
        while late and late[0][0] <= time.monotonic():
            send(near, late.popleft()[1])


if __name__ == "__main__":
    main()
