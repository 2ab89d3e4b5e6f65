"""What strangers do to an open port: each function is one attack on 127.0.0.1:port and returns when
it is through. The node may close the connection at any point. `draw` is a random.Random.

Sizes are bounded so that the test's own machine survives: it is the node's bounds that are tested.
"""
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4
ATTENTION = "/pigpen.v1.AttentionService/"
STRANGE_HOST = "127.0.0.2"
GONE = (ConnectionError, TimeoutError, OSError)


def frame(kind, flags, stream, payload, declared=None):
    size = len(payload) if declared is None else declared
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(path, extra=()):
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "node"),
              ("content-type", "application/grpc"), ("te", "trailers"), *extra]
    return b"".join(b"\0" + b"\x7f" * (len(n) > 126) + bytes([min(len(n), 126)]) + n.encode() +
                    integer(len(v)) + v.encode() for n, v in fields)


def integer(value):
    """HPACK, 7 bits and more."""
    if value < 127:
        return bytes([value])
    out, value = b"\x7f", value - 127
    while value >= 128:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def connect(port, host=STRANGE_HOST, timeout=10):
    """From another of loopback's hosts than those whom the node shall serve."""
    return socket.create_connection(("127.0.0.1", port), timeout=timeout, source_address=(host, 0))


class Stranger:
    def __init__(self, port, preface=True):
        self.socket = connect(port)
        if preface:
            self.send(PREFACE + frame(SETTINGS, 0, 0, b""))

    def send(self, data):
        self.socket.sendall(data)

    def open(self, stream, path, flags=END_HEADERS, extra=()):
        self.send(frame(HEADERS, flags, stream, header_block(path, extra)))

    def drain(self, seconds=0.2, bytes_max=1 << 20):
        """Takes what the node says, until it is silent."""
        self.socket.settimeout(seconds)
        try:
            while bytes_max > 0:
                got = self.socket.recv(65536)
                if not got:
                    return
                bytes_max -= len(got)
        except GONE:
            pass
        self.socket.settimeout(10)

    def close(self, abruptly=False):
        if abruptly:  # RST instead of FIN
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def attack(body):
    """The node may hang up on the stranger whenever it likes."""
    def run(port, draw):
        try:
            stranger = Stranger(port, preface=body is not random_bytes)
        except GONE:
            return
        try:
            body(stranger, draw)
            stranger.drain()
        except GONE:
            pass
        finally:
            stranger.close(abruptly=draw.random() < 0.5)
    run.__name__ = body.__name__
    return run


def random_bytes(stranger, draw):
    if draw.random() < 0.5:
        stranger.send(PREFACE)
    for _ in range(draw.randrange(1, 20)):
        stranger.send(draw.randbytes(draw.randrange(1, 5000)))


def random_frames(stranger, draw):
    for _ in range(draw.randrange(1, 200)):
        payload = draw.randbytes(draw.randrange(0, 60))
        stranger.send(frame(draw.randrange(0, 12), draw.randrange(256),
                            draw.choice((0, 1, 3, 5, 0x7fffffff)), payload))


def truncated_frames(stranger, draw):
    stranger.open(1, ATTENTION + "AppendKvStream")
    whole = frame(DATA, 0, 1, b"\0" + struct.pack(">I", 4000) + draw.randbytes(4000))
    stranger.send(whole[:draw.randrange(1, len(whole))])


def huge_frame(stranger, draw):
    stranger.open(1, ATTENTION + "AppendKvStream")
    stranger.send(frame(draw.choice((DATA, HEADERS, SETTINGS)), 0, 1, draw.randbytes(100),
                        declared=(1 << 24) - 1))


def huge_message(stranger, draw):
    """A gRPC message of 4 GiB, or of just what is allowed, that never comes."""
    for stream in range(1, 41, 2):
        stranger.open(stream, ATTENTION + draw.choice(("AppendKvStream", "Attend", "OpenPart")))
        size = draw.choice((0xffffffff, 0x7fffffff, 17 << 20, 16 << 20))
        stranger.send(frame(DATA, 0, stream, b"\0" + struct.pack(">I", size) + bytes(1000)))


def compressed(stranger, draw):
    stranger.open(1, ATTENTION + "AppendKv",
                  extra=[("grpc-encoding", draw.choice(("gzip", "deflate", "x" * 300)))])
    stranger.send(frame(DATA, END_STREAM, 1,
                        b"\1" + struct.pack(">I", 5000) + draw.randbytes(5000)))


def half_messages(stranger, draw):
    """As much as the window allows on many streams, none finished."""
    for stream in range(1, 33, 2):
        stranger.open(stream, ATTENTION + "AppendKvStream")
    for stream in range(1, 33, 2):
        stranger.send(frame(DATA, 0, stream, b"\0" + struct.pack(">I", 15 << 20) + bytes(4)))
        for _ in range(32):
            stranger.send(frame(DATA, 0, stream, bytes(16000)))


def many_streams(stranger, draw):
    for stream in range(1, 4001, 2):
        stranger.open(stream, ATTENTION + draw.choice(("AttendStream", "Nothing", "GetPart")))


def reset_flood(stranger, draw):
    for stream in range(1, 4001, 2):
        stranger.open(stream, ATTENTION + "Attend")
        stranger.send(frame(RST, 0, stream, struct.pack(">I", 8)))


def control_flood(stranger, draw):
    kind = draw.choice(("ping", "settings", "window", "priority"))
    for _ in range(4000):
        if kind == "ping":
            stranger.send(frame(PING, 0, 0, bytes(8)))
        elif kind == "settings":
            stranger.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 3, draw.randrange(1 << 32))))
        elif kind == "window":
            stranger.send(frame(WINDOW, 0, 0, struct.pack(">I", draw.choice((0, 1, 0x7fffffff)))))
        else:
            stranger.send(frame(PRIORITY, 0, 1, struct.pack(">IB", 1, 0)))


def endless_headers(stranger, draw):
    stranger.send(frame(HEADERS, 0, 1, header_block(ATTENTION + "Attend")))
    for _ in range(1000):
        name = draw.randbytes(5).hex().encode()
        stranger.send(frame(CONTINUATION, 0, 1,
                            b"\0" + integer(10) + name + integer(1000) + b"a" * 1000))


def large_headers(stranger, draw):
    for stream in range(1, 21, 2):
        stranger.open(stream, ATTENTION + "Attend",
                      extra=[(f"x-{i}", "v" * draw.randrange(1, 4000)) for i in range(3)])


def never_reads(stranger, draw):
    """Answers are asked for, and no window is left for them."""
    stranger.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
    for stream in range(1, 201, 2):
        stranger.open(stream, "/pigpen.v1.AdminService/GetStats")
        stranger.send(frame(DATA, END_STREAM, stream, b"\0\0\0\0\0"))


def plain_http(stranger, draw):
    stranger.send(draw.choice((b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\0\1\0\1\xfc",
                               b"GET " + b"a" * 100000, b"\0" * 100000)))


ATTACKS = [attack(body) for body in
           (random_bytes, random_frames, truncated_frames, huge_frame, huge_message, compressed,
            half_messages, many_streams, reset_flood, control_flood, endless_headers, large_headers,
            never_reads, plain_http)]
