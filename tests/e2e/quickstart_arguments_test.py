"""deploy/quickstart refuses what it cannot do before it installs or builds anything."""
import pathlib
import subprocess
import unittest

QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "quickstart"


class QuickstartArgumentsTest(unittest.TestCase):
    def test_wrong_arguments_end_it_at_once_with_a_line_that_names_them(self):
        for option, value in (("--nodes", "0"), ("--max-tokens", "x"), ("--estimator", "foo"),
                              ("--model", "/nonexistent.gguf"), ("--text", "/nonexistent.txt")):
            done = subprocess.run([str(QUICKSTART), option, value], timeout=10, text=True,
                                  capture_output=True, stdin=subprocess.DEVNULL)
            self.assertIn(done.returncode, (1, 2), option)
            self.assertIn(value, done.stderr)
            self.assertEqual(done.stdout, "", f"{option} {value} went on to the packages")


if __name__ == "__main__":
    unittest.main()
