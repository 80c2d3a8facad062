"""The board: shared memory of one node, in which its workers write how they are, and which its agent reads.

    agent:   board = Board(slots=8); environment["OUTLAST_BOARD"] = board.address(3); board.read(3)
    worker:  slot = BoardSlot.at(os.environ["OUTLAST_BOARD"]); slot.words[BEAT_AT] = time.monotonic_ns()

**Nothing can leak.** It is a memfd: no name in /dev/shm, no limit of a container's /dev/shm, and gone with the last
process that has it, however that ends. Workers reach it as /proc/AGENT/fd/N. Nothing has to be inherited for that, so
forked workers, started ones and those behind a shell script are alike, and other users are kept out by the kernel.
A new board for every generation: what is left of an old one cannot write into the new.

**Nothing can be torn.** All that is written while training goes on is words of eight bytes, and one aligned store each:
an open section is one word, its time with its name's number in the lowest byte (so to 256 ns). A reading is made of
many words. They are laid out so that whoever looks at the clock first, and then reads upwards while the worker goes on,
never finds a worker late that is not: what ends a wait stands above what began it, and is written first. Where the
processor keeps no such order (ARM), reading until two passes agree makes up for it. A request spans many words; its
number is odd while it is being written. Names never change once they are counted.

Times are CLOCK_MONOTONIC's, which stands still while a machine is suspended: nobody hangs in his sleep.

Loaded by workers, among the script's own modules: no torch, no msgspec, and nothing of the standard library whose name
a script's own file may well have.
"""
