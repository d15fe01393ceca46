# Waits for a line on stdin. Then it works for the processor time that the first argument says, in seconds: 10, 20, 30 and 40 % of it in the functions of these names. With `-X perf`, Python
# 3.12 lists a trampoline for each function. See plain.c.
import sys
import time


def ten(scale):
    for _ in range(100 * scale):
        pass


def twenty(scale):
    for _ in range(200 * scale):
        pass


def thirty(scale):
    for _ in range(300 * scale):
        pass


def forty(scale):
    for _ in range(400 * scale):
        pass


sys.stdin.readline()
end = float(sys.argv[1]) if len(sys.argv) > 1 else 1
random = 1
while time.process_time() < end:
    random = (random * 6364136223846793005 + 1442695040888963407) % 2**64
    scale = 1 + (random >> 60)
    ten(scale)
    twenty(scale)
    thirty(scale)
    forty(scale)
