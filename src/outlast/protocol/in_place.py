"""What an agent and a worker inside a restartable function say to each other, on a socket of their own.

    worker   entered 3.0        it is inside; the seconds that it may take to leave (empty: as the agent has it)
             failed             the function raised; the exception is on the board. It leaves by itself
             parked             it has left, and can no longer reach its generation; or it has not been in one yet
             declined           it cannot leave: end it
             returned           the function is done: end it as any other from now on
    agent    leave              the generation is over
             become             go on in the next one: with a file in memory that says how, stdout and stderr

Each is one packet (SOCK_SEQPACKET), so none is ever half there.
"""

from __future__ import annotations

VARIABLE = "OUTLAST_IN_PLACE"  # the socket's name, in the kernel's own space
STANDBY = "OUTLAST_STANDBY"  # set: this process is of no generation yet, and waits for one before it enters

ENTERED, FAILED, PARKED, DECLINED, RETURNED = b"entered", b"failed", b"parked", b"declined", b"returned"
LEAVE, BECOME = b"leave", b"become"

LONGEST = 64  # bytes of a packet
DESCRIPTORS = 3  # that come with `become`: the changes to the environment, stdout, stderr
