/*
 * Succession: how the job survives the loss of its coordinator. See README.md for what is modelled and what is not.
 *
 * One process, which takes one step at a time out of all that may happen next. Nothing has to happen, ever: a partition,
 * one-way or not, a paused process and a slow network are all just steps that are not taken while the clock goes on.
 * The one thing that time does by force is to end leases: workers are killed by a guard, not by their agent.
 */

#ifndef HOSTS
#define HOSTS 2            /* coordinators may live on nodes 0 .. HOSTS-1 */
#endif
#ifndef TERMS
#define TERMS 3            /* highest term number */
#endif
#ifndef GENS
#define GENS 3             /* generations formed, the first included */
#endif
#ifndef FIRST
#define FIRST 7            /* roster of the first generation, one bit per node */
#endif
#ifndef DEATHS
#define DEATHS 0           /* how many agents die, and come back without memory */
#endif
#ifndef SLOWSTOP
#define SLOWSTOP 0         /* 1: workers end some time after they are told to, or by themselves */
#endif
#ifndef DELAY
#define DELAY 0            /* 1: an Ack is under way for any time; 0: it arrives at once or never */
#endif
#ifndef PROGRESS
#define PROGRESS 0         /* 1: in every state, try fair weather; the job must run in the end */
#endif
#define NODES 3
#define GENERATIONS (GENS + 3 * PROGRESS)

/* Ticks. The clocks may differ by the whole margin: the promise is the shortest that a fast clock makes of the lease,
 * the lease the longest that a slow one makes of it. */
#ifndef TICKS
#define TICKS 2
#endif
#define SUPPORT TICKS
#define PROMISE TICKS
#define LEASE   (TICKS + 1)
#define TIMEOUT (TICKS + 1)

/* The mutants: rules left out. Each of them must break something. */
#ifndef NOPROMISE
#define NOPROMISE 0     /* a node may join another coordinator at any time */
#endif
#ifndef HEARING
#define HEARING 0       /* support is counted from when the echo was heard */
#endif
#ifndef LONGSUPPORT
#define LONGSUPPORT 0   /* support lasts longer than the promise */
#endif
#ifndef LEASEIDLE
#define LEASEIDLE 0     /* leases are granted without authority */
#endif
#ifndef NOWAIT
#define NOWAIT 0        /* a successor takes absent members for dead at once */
#endif
#ifndef HALF
#define HALF 0          /* half of the votes are enough */
#endif
#ifndef FORGET
#define FORGET 0        /* a new generation's electorate replaces the old one at once */
#endif
#ifndef PLAIN
#define PLAIN 0         /* generations are numbered base + 1 */
#endif
#ifndef LEXICAL
#define LEXICAL 0       /* of two terms with one number, the higher `by` is the higher term */
#endif
#ifndef NOCALM
#define NOCALM 0        /* a successor forms as soon as the members that it knows of are clear */
#endif
#ifndef LEASEALL
#define LEASEALL 0      /* workers of a generation that the coordinator does not know are leased, too */
#endif
#ifndef SAMETERM
#define SAMETERM 0      /* a coordinator that lost its journal may take a term that it had before */
#endif
#ifndef HANGUP
#define HANGUP 0        /* a node that turns to another coordinator looks to the first one as if it had ended */
#endif
#ifndef NEWLIFE
#define NEWLIFE 0       /* a gathering coordinator, too, takes the votes of earlier lives out */
#endif
#ifndef PRESUME
#define PRESUME 0       /* a new generation's electorate is taken to support whoever formed it, even when it decides alone */
#endif
#ifndef UNBACKED
#define UNBACKED 0      /* the electorate before is history once it knows the newest, though that has not spoken yet */
#endif
#ifndef OWNVOTES
#define OWNVOTES 0      /* a successor learns of votes only from those who hold them */
#endif

/* A generation; they are counted in the order of forming, 0 is none. */
typedef Generation {
    unsigned roster : 3;             /* one bit per node */
    unsigned ended : 3;              /* members whose agent has died since */
    unsigned number : 4;
    unsigned formed : 3;             /* the number of the term */
    unsigned head : 2
}

typedef Node {
    unsigned tnum : 3; unsigned tby : 2;        /* the term that it has adopted */
    unsigned aff : 3; unsigned gen : 3; unsigned prev : 3;      /* its charter: affirmed, newest generation, unsettled since */
    unsigned promise : 2;                       /* it joins nobody but tby for so long */
    unsigned alive : 3; unsigned lease : 2;     /* the generation whose workers live here, and for how long at most */
    unsigned floor : 4;                         /* no generation up to this number will start here again */
#if OWNVOTES
    unsigned told : 3;                          /* the newest generation in which it knows its votes */
#endif
    /* The Ack that is under way to it, with all that is said along with it. `age` counts down from LEASE, 0 is none. */
    unsigned age : 2; unsigned mby : 2; unsigned mterm : 3; unsigned maff : 3; unsigned mgen : 3; unsigned mprev : 3;
    unsigned leased : 1; unsigned start : 1; unsigned stop : 1
}

typedef Coordinator {
    unsigned up : 1; unsigned acting : 1; unsigned stopping : 1;
    unsigned term : 3;
    unsigned aff : 3; unsigned gen : 3; unsigned prev : 3;
    unsigned out : 3; unsigned pout : 3;        /* members of gen and of prev that it has seen end */
    unsigned knows : 3;                         /* who has echoed this charter */
    unsigned clear : 3;                         /* where no worker lives */
    unsigned calm : 2;                          /* until leases of other coordinators have ended */
    unsigned fresh : 2;                         /* until a new electorate must have spoken */
    byte sup[NODES]                             /* counts down from the sending of the last Ack that was echoed: see below */
}

Generation g[GENERATIONS + 1];
Node node[NODES];
Coordinator co[HOSTS];
byte gens = 1, deaths;

/* scratch: zero between steps */
byte i, j, k, v, w;
bit one_alive, one_acts, new_number;
#define NOBODY 7
#define ROUNDS 20                    /* of fair weather */
#if PROGRESS
byte x, y, z, best, lost;
bit fair, ok, acts, all_run;
#define LIMIT (fair -> 7 : TERMS)
#define LAST (fair -> GENERATIONS : GENS)
#else
#define LIMIT TERMS
#define LAST GENS
#endif

#define HAS(mask, n) (((mask) >> (n)) & 1)
#define BIT(n) (1 << (n))
#define COUNT(e, a, m) (HAS(m, 0) * VOTES(e, a, 0) + HAS(m, 1) * VOTES(e, a, 1) + HAS(m, 2) * VOTES(e, a, 2))
#define VOTES(e, a, n) (HAS(a, n) * (2 + (g[e].head == (n))))
#define LIVING(e) (g[e].roster & (7 - g[e].ended))
/* m: who is for it; gone: who is taken out */
#define QUORUM(e, m, gone) (2 * COUNT(e, LIVING(e), m) + HALF > COUNT(e, g[e].roster, 7 - (gone)) - HALF || g[e].roster == (gone))
/* `sup` starts at TIMEOUT: above ELAPSED it is support, above 0 the node's lease may not have ended yet */
#define ELAPSED (LONGSUPPORT -> 0 : TIMEOUT - SUPPORT)
#define SUPPORTERS(c) ((co[c].sup[0] > ELAPSED) + 2 * (co[c].sup[1] > ELAPSED) + 4 * (co[c].sup[2] > ELAPSED))
#if OWNVOTES
#define TOLD(c, n) (BIT(n) * (node[n].told == co[c].gen || g[co[c].gen].formed == co[c].term))
#define KNOWN(c) (TOLD(c, 0) + TOLD(c, 1) + TOLD(c, 2))
#else
#define KNOWN(c) 7
#endif
/* A new electorate is presumed to be with whoever formed it, but only while the one before has to be, for real. */
#define AUTHORITY(c) (((co[c].fresh && (co[c].prev || PRESUME)) || QUORUM(co[c].gen, SUPPORTERS(c) & KNOWN(c), co[c].out)) && \
    (!co[c].prev || QUORUM(co[c].prev, SUPPORTERS(c), co[c].pout)))
#define NEWER(a1, g1, a2, g2) (a1 > a2 || (a1 == a2 && g[g1].number > g[g2].number))

/* a coordinator without authority, in a new term */
inline gather(c) {
    co[c].term = w;
    printf("... C%d gathers in term %d\n", c, co[c].term);
    lapse(c);
    if
    :: co[c].term > LIMIT -> co[c].term = LIMIT; quit(c)
    :: else
    fi
}

inline lapse(c) {
    co[c].acting = 0; co[c].stopping = 0; co[c].knows = 0; co[c].clear = 0; co[c].calm = 0; co[c].fresh = 0;
    co[c].out = 0; co[c].pout = 0;
    for (k : 0 .. NODES - 1) { co[c].sup[k] = 0 }
}

/* its agent remembers which term it had last */
inline quit(c) { co[c].up = 0; co[c].aff = 0; co[c].gen = 0; co[c].prev = 0 }

inline said(n) {
    node[n].age = 0; node[n].mby = 0; node[n].mterm = 0; node[n].maff = 0; node[n].mgen = 0; node[n].mprev = 0;
    node[n].leased = 0; node[n].start = 0; node[n].stop = 0
}

/* n is known to c to have ended */
inline fin(c, n) {
    co[c].out = co[c].out | (BIT(n) & g[co[c].gen].roster);
    if :: co[c].prev -> co[c].pout = co[c].pout | (BIT(n) & g[co[c].prev].roster) :: else fi;
    co[c].sup[n] = 0
}

/* what follows at once from what c has heard from n */
inline weigh(c, n) {
    if
    :: !co[c].acting && AUTHORITY(c) ->
        printf("... C%d acts in term %d on charter (%d, %d, %d)\n", c, co[c].term, co[c].aff, co[c].gen, co[c].prev);
        co[c].acting = 1; co[c].aff = co[c].term;
        if
        :: !NOWAIT && gens < LAST ->
            co[c].calm = TIMEOUT
        :: else
        fi
    :: else
    fi;
    if
    :: co[c].acting && co[c].prev && node[n].aff == co[c].aff && node[n].gen == co[c].gen ->
        co[c].knows = co[c].knows | BIT(n);
        if
        :: QUORUM(co[c].prev, co[c].knows, co[c].pout) && (UNBACKED || PRESUME || QUORUM(co[c].gen, SUPPORTERS(c) & KNOWN(c), co[c].out)) -> co[c].prev = 0; co[c].pout = 0; co[c].knows = 0
        :: else
        fi
    :: else
    fi
}

/* a report or a Join of n reaches c, and is answered */
inline hear(c, n) {
    if
    :: HANGUP && node[n].tby != c && !node[n].alive && co[node[n].tby].acting -> v = node[n].tby; fin(v, n)
    :: else
    fi;
    if
    :: node[n].tnum > co[c].term || (node[n].tnum == co[c].term && node[n].tby != c && !LEXICAL) -> w = node[n].tnum + 1; gather(c)
    :: else
    fi;
    if
    :: co[c].up && NEWER(node[n].aff, node[n].gen, co[c].aff, co[c].gen) ->
        if :: co[c].acting -> w = co[c].term + 1; gather(c) :: else fi;
        if :: co[c].up -> co[c].out = 0; co[c].pout = 0; co[c].aff = node[n].aff; co[c].gen = node[n].gen; co[c].prev = node[n].prev :: else fi
    :: co[c].up && !co[c].acting && node[n].aff == co[c].aff && node[n].gen == co[c].gen && !node[n].prev -> co[c].prev = 0
    :: else
    fi;
    if
    :: NEWLIFE && co[c].up && HAS(g[co[c].gen].ended, n) -> fin(c, n)
    :: else
    fi;
    if
    :: co[c].up ->
        if
        :: HEARING && node[n].tnum == co[c].term && node[n].tby == c -> co[c].sup[n] = TIMEOUT
        :: else
        fi;
        weigh(c, n);
        if
        :: co[c].acting && gens < LAST ->
            if
            :: co[c].stopping && !node[n].alive && (g[co[c].gen].formed != co[c].term || !HAS(LIVING(co[c].gen), n) || node[n].floor >= g[co[c].gen].number) ->
                co[c].clear = co[c].clear | BIT(n)
            :: else
            fi
        :: else
        fi;
        node[n].age = LEASE; node[n].mby = c; node[n].mterm = co[c].term;
        node[n].maff = co[c].aff; node[n].mgen = co[c].gen; node[n].mprev = co[c].prev;
        node[n].leased = (co[c].acting || LEASEIDLE) && (!node[n].alive || node[n].alive == co[c].gen || LEASEALL);
        node[n].start = co[c].acting && !co[c].stopping && g[co[c].gen].formed == co[c].term && HAS(LIVING(co[c].gen), n);
        node[n].stop = co[c].acting && (co[c].stopping || (node[n].alive && node[n].alive != co[c].gen))
    :: else
    fi
}

/* the Ack under way from c reaches n, and n echoes it */
inline take(n, c) {
    if
    :: node[n].mterm > node[n].tnum || (node[n].mterm == node[n].tnum && (c == node[n].tby || (LEXICAL && c > node[n].tby))) ->
        node[n].tnum = node[n].mterm; node[n].tby = c;
        node[n].promise = (NOPROMISE -> 0 : PROMISE);
#if OWNVOTES
        if :: g[node[n].mgen].formed == node[n].mterm -> node[n].told = node[n].mgen :: else fi;
#endif
        if
        :: !NEWER(node[n].aff, node[n].gen, node[n].maff, node[n].mgen) ->
            node[n].aff = node[n].maff; node[n].gen = node[n].mgen; node[n].prev = node[n].mprev
        :: else
        fi;
        if
        :: node[n].stop ->
            if :: g[node[n].mgen].number > node[n].floor -> node[n].floor = g[node[n].mgen].number :: else fi;
            if :: !SLOWSTOP -> node[n].alive = 0; node[n].lease = 0 :: else fi;
            if :: node[n].leased && node[n].alive && node[n].age > node[n].lease -> node[n].lease = node[n].age :: else fi
        :: !node[n].stop && node[n].start && node[n].leased && !node[n].alive && g[node[n].mgen].number > node[n].floor ->
            printf("... %d starts generation %d\n", n, node[n].mgen);
            node[n].alive = node[n].mgen; node[n].lease = node[n].age; node[n].floor = g[node[n].mgen].number
        :: else ->
            if :: node[n].leased && node[n].alive && node[n].age > node[n].lease -> node[n].lease = node[n].age :: else fi
        fi;
        if
        :: co[c].up && node[n].mterm == co[c].term && !HEARING && node[n].age > co[c].sup[n] -> co[c].sup[n] = node[n].age
        :: else
        fi;
        if
        :: co[c].up && node[n].mterm == co[c].term -> weigh(c, n)
        :: else
        fi
    :: else
    fi;
    said(n)
}

/* every member is clear, or has ended, or was not heard for so long that its lease has ended */
#define PATIENCE(c, n) (co[c].calm || co[c].sup[n] || (node[n].age && node[n].mby == c && node[n].mterm == co[c].term))
#define OVER1(c, n) (!HAS(g[co[c].gen].roster, n) || HAS(co[c].clear | co[c].out, n) || !PATIENCE(c, n))
/* who is clear, whether bound to c or not */
#define READY(c) (co[c].clear)
#define OVER(c) (OVER1(c, 0) && OVER1(c, 1) && OVER1(c, 2))

inline form(c) {
    gens++;
    g[gens].roster = READY(c); g[gens].formed = co[c].term;
    g[gens].number = g[co[c].gen].number + 1 + (PLAIN -> 0 : co[c].term - g[co[c].gen].formed);
    printf("... generation %d in term %d: number %d, roster %d, on %d\n", gens, co[c].term, g[gens].number, g[gens].roster, co[c].gen);
    new_number = 1;
    for (k : 1 .. gens - 1) {
        if :: g[k].number == g[gens].number -> new_number = 0 :: else fi
    }
    assert(new_number);              /* (2) numbers are unique */
    new_number = 0;
    g[gens].head = (HAS(g[gens].roster, c) -> c : (HAS(g[gens].roster, 0) -> 0 : (HAS(g[gens].roster, 1) -> 1 : 2)));
    co[c].prev = (FORGET -> 0 : co[c].gen);
    co[c].pout = (FORGET -> 0 : co[c].out);
    co[c].gen = gens; co[c].out = 0; co[c].aff = co[c].term; co[c].fresh = SUPPORT; co[c].knows = 0; co[c].clear = 0; co[c].stopping = 0;
    if
    :: gens == LAST ->
        for (i : 0 .. HOSTS - 1) {
            co[i].calm = 0; co[i].clear = 0
        }
    :: else
    fi
}

inline down(t) { if :: t -> t-- :: else fi }

inline tick() {
    for (i : 0 .. NODES - 1) {
        down(node[i].lease); down(node[i].promise); down(node[i].age);
        if :: !node[i].lease -> node[i].alive = 0 :: else fi;
        if :: !node[i].age -> said(i) :: else fi
    }
    for (i : 0 .. HOSTS - 1) {
        down(co[i].calm); down(co[i].fresh);
        for (j : 0 .. NODES - 1) { down(co[i].sup[j]) }
        if
        :: co[i].acting && !AUTHORITY(i) -> w = co[i].term + 1; gather(i)
        :: else
        fi
    }
}

/* an agent dies, and its workers with it; another one starts in its place, without memory */
inline die(n) {
    deaths++;
    node[n].alive = 0; node[n].lease = 0; node[n].promise = 0; node[n].tnum = 0; node[n].tby = 0;
    node[n].aff = 0; node[n].gen = 0; node[n].prev = 0; node[n].floor = 0; said(n);
    for (i : 1 .. gens) { g[i].ended = g[i].ended | (BIT(n) & g[i].roster) }
}

/* what always holds; (2) is where generations are numbered, (4) where fair weather ends */
inline check() {
    one_alive = 1; one_acts = 1;
    for (i : 0 .. NODES - 1) {
        for (j : i + 1 .. NODES - 1) {
            if :: node[i].alive && node[j].alive && node[i].alive != node[j].alive -> one_alive = 0 :: else fi
        }
    }
    for (i : 0 .. HOSTS - 1) {
        for (j : i + 1 .. HOSTS - 1) {
            if :: co[i].acting && co[j].acting -> one_acts = 0 :: else fi
        }
    }
    assert(one_alive);               /* (1) at most one generation has workers alive */
    assert(one_acts);                /* (3) at most one coordinator acts */
    one_alive = 0; one_acts = 0; i = 0; j = 0; k = 0; v = 0; w = 0
}

#define MAY(n, c) (co[c].up && (!node[n].promise || node[n].tby == c))
#define MAYSTOP(c) (co[c].acting && !co[c].stopping && gens < LAST)
#define MAYFORM(c) (co[c].acting && co[c].stopping && READY(c) && !co[c].prev && (!co[c].calm || NOCALM) && gens < LAST && OVER(c))
#define MAYSTART(c) (!co[c].up && !node[c].promise && node[c].gen && node[c].tnum < LIMIT && co[c].term < LIMIT)

inline begin(c) {
    co[c].up = 1; co[c].aff = node[c].aff; co[c].gen = node[c].gen; co[c].prev = node[c].prev;
    w = (node[c].tnum > co[c].term || SAMETERM -> node[c].tnum : co[c].term) + 1;
    gather(c)
}

#if DELAY
#define PAIR(n, c) \
    :: d_step { MAY(n, c) -> printf("C%d hears %d\n", c, n); hear(c, n); check() } \
    :: d_step { node[n].age && node[n].mby == c -> printf("C%d's Ack arrives at %d\n", c, n); take(n, c); check() }
#else
#define PAIR(n, c) \
    :: d_step { MAY(n, c) -> printf("C%d hears %d, its Ack is lost\n", c, n); hear(c, n); said(n); check() } \
    :: d_step { MAY(n, c) -> printf("C%d hears %d, its Ack arrives\n", c, n); hear(c, n); if :: node[n].age -> take(n, c) :: else fi; check() }
#endif
#define WORKERS(n) \
    :: d_step { node[n].alive -> printf("the workers on %d end\n", n); node[n].alive = 0; node[n].lease = 0; check() }
#define NODE(n) \
    :: d_step { deaths < DEATHS -> printf("agent %d dies unseen\n", n); die(n); check() } \
    :: d_step { deaths < DEATHS && node[n].tby < HOSTS && co[node[n].tby].acting && co[node[n].tby].term == node[n].tnum -> \
        printf("agent %d dies, C%d sees it\n", n, node[n].tby); v = node[n].tby; fin(v, n); die(n); \
        if :: !AUTHORITY(v) -> w = co[v].term + 1; gather(v) :: else fi; check() }
#define COORDINATOR(c) \
    :: d_step { MAYSTOP(c) -> printf("C%d ends its generation\n", c); co[c].stopping = 1; check() } \
    :: d_step { MAYFORM(c) -> printf("C%d forms\n", c); form(c); check() } \
    :: d_step { co[c].up && co[c].term < TERMS -> printf("C%d dies, and comes back with its journal\n", c); w = co[c].term + 1; gather(c); check() } \
    :: d_step { co[c].up && (co[c].term < TERMS || SAMETERM) && node[c].tnum < TERMS && node[c].gen -> printf("C%d dies, and comes back without its journal\n", c); quit(c); begin(c); check() } \
    :: d_step { MAYSTART(c) -> printf("C%d is started\n", c); begin(c); check() }

#if PROGRESS
/* whom a node would turn to: one that acts, else the one in the highest term */
inline look() {
    best = NOBODY;
    for (y : 0 .. HOSTS - 1) {
        if
        :: y != lost && co[y].up && (best == NOBODY || co[y].acting || (!co[best].acting && co[y].term > co[best].term)) -> best = y
        :: else
        fi
    }
    for (y : 0 .. HOSTS - 1) {
        if
        :: y != lost && best == NOBODY && MAYSTART(y) -> begin(y); best = y
        :: else
        fi
    }
}

/* how many nodes do not run the newest generation */
inline idle() {
    v = 0;
    for (z : 0 .. NODES - 1) {
        if :: z != lost && node[z].alive != co[best].gen -> v++ :: else fi
    }
}

/* the newest charter that is left, and whether those who are left are enough for it */
inline enough() {
    x = 0; y = 0; z = 0;
    for (i : 0 .. NODES - 1) {
        if
        :: i != lost && (NEWER(node[i].aff, node[i].gen, x, y) || (node[i].aff == x && node[i].gen == y && !node[i].prev)) ->
            x = node[i].aff; y = node[i].gen; z = node[i].prev
        :: else
        fi
    }
    for (i : 0 .. HOSTS - 1) {
        if
        :: i != lost && co[i].up && (NEWER(co[i].aff, co[i].gen, x, y) || (co[i].aff == x && co[i].gen == y && !co[i].prev)) ->
            x = co[i].aff; y = co[i].gen; z = co[i].prev
        :: else
        fi
    }
    v = 7 - (lost < NODES -> BIT(lost) : 0);
    ok = QUORUM(y, v, 0) && (!z || QUORUM(z, v, 0))
}

/* from now on everything works, but for the host that is lost; then the job must run again */
inline weather(host) {
    lost = host; fair = 1;
    enough();
    if
    :: ok ->
        for (x : 1 .. ROUNDS) {
            look();
            if
            :: best != NOBODY ->
                for (z : 0 .. NODES - 1) {
                    if
                    :: z != lost && MAY(z, best) ->
                        hear(best, z);
                        if :: node[z].age -> take(z, best) :: else fi
                    :: else
                    fi
                }
                idle();
                if
                :: MAYFORM(best) -> form(best)
                :: else ->
                    if :: MAYSTOP(best) && v && !co[best].calm && !co[best].prev -> co[best].stopping = 1 :: else fi
                fi
            :: else
            fi;
            tick()
        }
        /* a generation may have been formed with the host in the moment in which it was lost */
        enough();
        if
        :: ok ->
            look();
            acts = (best == NOBODY -> 0 : co[best].acting);
            assert(acts);            /* (4) somebody acts in the end */
            idle();
            all_run = !v;
            assert(all_run)          /* (4) and everybody runs */
        :: else
        fi
    :: else
    fi
}
/* all such ends are one state */
inline forget() {
    for (i : 0 .. NODES - 1) {
        said(i); node[i].tnum = 0; node[i].tby = 0; node[i].aff = 0; node[i].gen = 0; node[i].prev = 0;
        node[i].promise = 0; node[i].alive = 0; node[i].lease = 0; node[i].floor = 0
    }
    for (i : 0 .. HOSTS - 1) { quit(i); lapse(i); co[i].term = 0 }
    for (i : 1 .. GENERATIONS) { g[i].roster = 0; g[i].number = 0; g[i].formed = 0; g[i].head = 0 }
    gens = 0; best = 0; lost = 0; fair = 0; x = 0; y = 0; z = 0; i = 0; k = 0; v = 0; w = 0; ok = 0; acts = 0; all_run = 0
}

#define WEATHER(host) :: d_step { true -> printf("fair weather, but for %d\n", host); weather(host); forget() }; break
#endif

init {
    d_step {
        g[1].roster = FIRST; g[1].number = 1; g[1].formed = 1; g[1].head = (HAS(FIRST, 0) -> 0 : 1);
        co[0].up = 1; co[0].acting = 1; co[0].term = 1; co[0].aff = 1; co[0].gen = 1;
        for (i : 0 .. NODES - 1) {
            node[i].tnum = 1; node[i].aff = 1; node[i].gen = 1; node[i].promise = PROMISE;
            if
            :: HAS(FIRST, i) ->
                node[i].alive = 1; node[i].lease = LEASE; node[i].floor = 1;
                co[0].sup[i] = TIMEOUT
#if OWNVOTES
                ; node[i].told = 1
#endif
            :: else
            fi
        }
        i = 0
    };
    do
    :: d_step { printf("tick\n"); tick(); check() }
    PAIR(0, 0) PAIR(1, 0) PAIR(2, 0)
    PAIR(0, 1) PAIR(1, 1) PAIR(2, 1)
#if HOSTS > 2
    PAIR(0, 2) PAIR(1, 2) PAIR(2, 2)
#endif
#if SLOWSTOP
    WORKERS(0) WORKERS(1) WORKERS(2)
#endif
#if DEATHS
    NODE(0) NODE(1) NODE(2)
#endif
    COORDINATOR(0) COORDINATOR(1)
#if HOSTS > 2
    COORDINATOR(2)
#endif
#if PROGRESS
    WEATHER(0) WEATHER(1) WEATHER(2) WEATHER(NOBODY)
#endif
    od
}
