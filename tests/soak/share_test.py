"""A node shared out: strangers of one host that hold all connections and calls they can get, and a
node with next to no file descriptors. A good client of another host is answered all the while, and
new ones of it get in; the strangers are told why they do not.

PIGPEN_LONG=1 does it for minutes."""
import os
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))
import hostile  # noqa: E402
import node_process  # noqa: E402
from good_client import ANSWER_SECONDS, Good  # noqa: E402
from node_client import PROGRAM, Client, health  # noqa: E402
from node_watch import Watch  # noqa: E402

LONG = os.environ.get("PIGPEN_LONG") == "1"
ROUNDS = 60 if LONG else 2
FEW_FILES = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
STREAMS_OF_A_CONNECTION = 256
CALLS = 1024
REFUSED = 'pigpen_node_connections_refused_total{{why="{}"}}'


class ShareTest(unittest.TestCase):
    def start(self, *options, prefix=()):
        self.node = node_process.Node(PROGRAM, "--memory-limit=512MiB", "--drain-timeout=2s",
                                      *options, prefix=prefix)
        self.addCleanup(self.node.kill_if_alive)
        self.client = Client(self.node.address)
        self.addCleanup(self.client.channel.close)
        self.watch = Watch(self.node, self.client)
        self.good = Good(self.node.address, 1)
        self.addCleanup(self.good.ended.set)

    def stat(self, name):
        return self.watch.stats()[name]

    def a_new_client_is_served(self):
        client = Client(self.node.address)
        try:
            answer = client.health.Check(health.HealthCheckRequest(), timeout=ANSWER_SECONDS,
                                         wait_for_ready=True)
            self.assertEqual(answer.status, health.HealthCheckResponse.SERVING)
        finally:
            client.channel.close()

    def good_goes_on(self):
        """Three more answers that it checked."""
        until = self.good.count + 3
        self.watch.wait("the good client is answered",
                        lambda: self.good.wrong is not None or self.good.count >= until)
        self.assertIsNone(self.good.wrong)

    def finish(self):
        self.good.end()
        self.assertIsNone(self.good.wrong)
        self.assertEqual(self.good.refused, 0)
        self.watch.wait("the strangers' calls are gone", lambda: self.stat("pigpen_node_calls") <= 1)
        self.client.channel.close()
        self.assertEqual(self.node.stop(), 0, "".join(self.node.lines[-40:]))

    def flood(self, count):
        """Silent connections."""
        held = [hostile.connect(self.node.port) for _ in range(count)]
        self.addCleanup(lambda: [one.close() for one in held])
        return held

    def test_a_node_with_few_file_descriptors_serves_on_and_says_whom_it_refuses(self):
        self.start(prefix=FEW_FILES)
        most = self.stat("pigpen_node_connections_max")
        self.assertTrue(4 <= most < 64, most)
        for number in range(ROUNDS):
            held = self.flood(100)
            self.watch.wait("those above its share are refused",
                            lambda at=50 * (number + 1): self.stat(REFUSED.format("share")) >= at)
            self.assertLessEqual(self.stat("pigpen_node_connections"), most)
            self.a_new_client_is_served()
            self.good_goes_on()
            for one in held:
                one.close()
            self.watch.wait("there is room again",
                            lambda: self.stat("pigpen_node_connections") <= 4)
        self.node.wait_for("connection refused")
        self.assertEqual(self.stat(REFUSED.format("files")), 0)
        self.finish()

    def test_connections_of_many_hosts_fill_the_node_and_leave_it_again(self):
        self.start("--connections-max=24")
        held = [hostile.connect(self.node.port, host=f"127.0.1.{1 + i}") for i in range(40)]
        self.watch.wait("the node is full", lambda: self.stat(REFUSED.format("limit")) >= 10)
        self.assertEqual(self.stat("pigpen_node_connections_max"), 24)
        self.good_goes_on()
        for one in held:
            one.close()
        self.watch.wait("there is room again", lambda: self.stat("pigpen_node_connections") <= 4)
        self.a_new_client_is_served()
        self.finish()

    def hold_streams(self):
        """All streams of three connections: as many calls as the node has, but for a quarter."""
        strangers = [hostile.Stranger(self.node.port) for _ in range(3)]
        for stranger in strangers:
            for number in range(STREAMS_OF_A_CONNECTION):
                stranger.open(1 + 2 * number, hostile.ATTENTION + "AttendStream")
        return strangers

    def test_calls_of_one_host_leave_room_for_those_of_another(self):
        self.start()
        quota = 'pigpen_node_rejected_total{reason="QUOTA"}'
        before = 0
        for _ in range(ROUNDS):
            strangers = self.hold_streams()
            self.watch.wait("those above its share are refused",
                            lambda at=before: self.stat(quota) >= at + 2)
            self.assertLessEqual(self.stat("pigpen_node_calls"), CALLS // 2 + 8)
            self.assertEqual(self.stat("pigpen_node_call_hosts"), 2)
            self.a_new_client_is_served()
            self.good_goes_on()
            self.refusal_of(strangers)
            for stranger in strangers:
                stranger.close()
            self.watch.wait("their calls are gone", lambda: self.stat("pigpen_node_calls") <= 3)
            before = self.stat(quota)
        self.finish()

    def refusal_of(self, strangers):
        """What the node says to them, until the reason of a refusal is in it."""
        told = {stranger: b"" for stranger in strangers}

        def read():
            for stranger in strangers:
                stranger.socket.setblocking(False)
                try:
                    told[stranger] += stranger.socket.recv(1 << 20)
                except hostile.GONE:
                    pass
            return any(b"QUOTA" in one and b"pigpen-retry-after-ms" in one for one in told.values())

        self.watch.wait("a stranger is told why", read)


if __name__ == "__main__":
    unittest.main()
