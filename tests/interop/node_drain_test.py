"""A node that is told to stop while it holds parts that nobody asks: it says what it waits for and how
long, ends when their leases have, and with --drain-timeout at the latest."""
import json
import pathlib
import subprocess
import unittest

import node_process
from node_client import BUILD, PROGRAM, Client, Part, np

CTL = pathlib.Path(BUILD) / "deploy" / "ctl" / "pigpenctl"


class NodeDrainTest(unittest.TestCase):
    def start(self, drain_timeout, lease):
        self.node = node_process.Node(PROGRAM, "--memory-limit=512MiB",
                                      f"--drain-timeout={drain_timeout}", f"--lease={lease}")
        self.addCleanup(self.node.kill_if_alive)
        self.client = Client(self.node.address)
        self.addCleanup(self.client.channel.close)
        self.part = Part(self.client)
        rows = np.ones((100, 2, 64), dtype=np.float32)
        self.part.append(rows, rows, 0, checksum=False)

    def info(self, *options):
        done = subprocess.run([str(CTL), "info", "--node", self.node.address, *options],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def told_to_stop(self):
        """Draining, as pigpenctl tells it."""
        self.node.process.terminate()
        self.node.wait_for("from=SERVING to=DRAINING")
        return json.loads(self.info("--json"))

    def test_an_idle_part_is_waited_for_until_its_lease_ends(self):
        self.start(drain_timeout="600s", lease="8s")
        info = self.told_to_stop()
        self.assertEqual((info["state"], info["parts"]), ("DRAINING", 1))
        self.assertGreater(info["drain_left_ms"], 500000)
        self.assertLessEqual(info["drain_left_ms"], 600000)
        self.assertRegex(self.info(), r"(?m)^drain +waits for 1 parts and ends at the latest in 0 h 09")
        self.assertEqual(self.node.process.wait(60), 0)
        self.node.stop()
        self.assertRegex("".join(self.node.lines), r'drained parts_left=0 cause="nothing is left"')

    def test_a_part_whose_lease_is_long_is_waited_for_until_the_drain_timeout(self):
        self.start(drain_timeout="4s", lease="1h")
        self.assertEqual(self.told_to_stop()["parts"], 1)
        self.assertEqual(self.node.process.wait(60), 0)
        self.node.stop()
        self.assertRegex("".join(self.node.lines), r'drained parts_left=1 cause="--drain-timeout"')


if __name__ == "__main__":
    unittest.main(verbosity=2)
