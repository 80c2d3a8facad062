set -u
me=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}  # the bare id would be the whole array
me=${me:-$SLURM_JOB_ID}
root=${1:-$me}  # the job that this one belongs to: its own, or the one that it joins
role=${2:-lead}  # lead; relay: takes over from the job that leads; join: adds nodes
state=$base/$root
events=$state/events.jsonl
say() { echo "$(date +%T) outlast batch: $*" >&2; }
if [ -n "${SLURM_HET_SIZE:-}" ]; then
  say "heterogeneous jobs are not supported: submit one job of one kind of node"
  exit 93
fi

state_of() { squeue -h -j "$1" -o %T 2>/dev/null; }
new() { tail -n +$((seen + 1)) "$events"; }  # what was written since this start
joined() { new | grep '"event":"node joined"' | grep -q "\"node\":\"$1\""; }
bad_nodes() {
  grep -ho '"event":"node excluded"[^}]*' "$events" | grep -o '"node":"[^"]*"' | cut -d'"' -f4 | sort -u | paste -sd,
}

# Asked anew at each start: after a requeue the nodes are others.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=0 follows=
if [ "$role" = lead ]; then
  mkdir -p "$state" && chmod 700 "$base" "$state" || exit 93
  echo "outlast-$me" >"$state/name"
  cp "$0" "$state/script"  # `outlast scale` submits it for more nodes
  port=$((20000 + SLURM_JOB_ID * 7 % 12000))
else
  [ -s "$state/places" ] || { say "job $root is not running: there is nothing to join"; exit 0; }
  ln -sfn "$(readlink "$state" || echo "$root")" "$base/$me"  # the job is found by this id as well
  port=$(sed -n '1s/.*://p' "$state/places")
  first=$(((SLURM_JOB_ID % 999000 + 1) * 1000))  # ranks after those of the job that is joined
  follows=$(cat "$state/lead")
  while [ "$role" = relay ] && [ "$(state_of "$follows")" = COMPLETING ]; do sleep 1; done
  if [ "$role" = relay ] && { [ "$follows" = "$me" ] || [ "$(state_of "$follows")" != RUNNING ]; }; then follows=; fi
fi
places=("${nodes[@]/%/:$port}")
# Since when this start has waited in the queue: the last one left, or the job was submitted.
since=$(cat "$state/left" 2>/dev/null || date -d "$(squeue -h -j "$SLURM_JOB_ID" -o %V)" +%s)
touch "$events"
seen=$(wc -l <"$events")
rm -f "$state/exit.$SLURM_JOB_ID".*

# The job that leads is the one whose end decides what happens next.
lead() {
  printf '%s\n' "${places[@]}" >"$state/places"
  echo "$me" >"$state/lead"
  rm -f "$state/successor"
  [ "$relay" = 1 ] && [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || return 0
  local end begin now id bad
  now=$(date +%s) bad=$(bad_nodes)
  end=$(date -d "$(squeue -h -j "$SLURM_JOB_ID" -o %e)" +%s 2>/dev/null) || { say "no relay: this job has no time limit"; return; }
  begin=$((end - relay_lead > now ? end - relay_lead : now))
  id=$(env -u SLURM_RESTART_COUNT sbatch --parsable --begin="$(date -d "@$begin" +%FT%T)" --exclusive \
    ${bad:+--exclude="$bad"} "$0" "$root" relay) || { say "no relay: sbatch refused the successor"; return; }
  echo "${id%%;*}" >"$state/successor"
  say "job ${id%%;*} takes over from $(date -d "@$begin" +%T) on, when it has nodes"
}
successor() { cat "$state/successor" 2>/dev/null; }
drop_successor() { [ -z "$(successor)" ] || [ "$(successor)" = "$me" ] || scancel "$(successor)"; }

# What goes on beside the steps, until they have ended: nothing of it may be left then, not even a sleep.
helper() {
  trap 'kill $(jobs -p) 2>/dev/null; exit' TERM
  "$@"
}
rest() {
  sleep "$1" &
  wait $!
}

# While the job before this one trains, the nodes of this one join it; then they take over.
take_over() {
  local node
  for node in "${nodes[@]}"; do
    until joined "$node" || [ "$(state_of "$follows")" != RUNNING ]; do rest 2; done
  done
  rest "$relay_warm"  # until they have imported what training imports
  [ "$(state_of "$follows")" != RUNNING ] || scancel --batch --signal=USR2 "$follows"
  while [ -n "$(state_of "$follows")" ]; do rest 1; done
  say "takes over from job $follows"
  lead
}

# A node that Slurm drains is left, if the job can go on without it. Slurm is asked rarely: others ask it, too.
leave_drained() {
  local name step left told=" "
  while rest "$poll"; do
    for name in $(sinfo -h -N -n "$SLURM_JOB_NODELIST" -o "%N %T" | awk '$2 ~ /^draining/ {print $1}' | sort -u); do
      case $told in *" $name "*) continue ;; esac
      mapfile -t left < <(squeue -h -s -j "$SLURM_JOB_ID" -o "%i %N" | grep -v 'batch\|extern')
      step=$(printf '%s\n' "${left[@]}" | awk -v node="$name" '$2 == node {print $1; exit}')
      [ -n "$step" ] && [ "${#left[@]}" -gt "$least" ] || continue
      told="$told$name "
      say "Slurm drains $name: the job goes on without it"
      scancel --signal=URG "$step"
    done
  done
}

draining= ended= relayed=
steps=() helpers=()
drain() {
  draining=1
  say "$1: all ranks save, and this job's nodes leave"
  scancel --signal=URG "$SLURM_JOB_ID"  # every step of this job, and not this script
}
trap 'drain "the time limit is near"' USR1
trap 'relayed=1; drain "job $(successor) takes over"' USR2
trap 'ended=1; drain "told to end"' TERM  # scancel or preemption: Slurm decides what comes next

# One step per node: a node's end is one step's end. An agent that was killed is started again while its node lives.
node() {
  local code tries=0 everywhere
  while :; do
    everywhere=$( { [ "$role" = lead ] || cat "$state/places"; printf '%s\n' "${places[@]}"; } | awk '!n[$0]++' | paste -sd,)
    srun --nodes=1 --ntasks=1 --nodelist="$1" --overlap --no-kill --kill-on-bad-exit=0 \
      "${srun_options[@]}" env SLURM_PROCID="$2" OUTLAST_SUBMITTED="${since:-0}" "${before[@]}" --rdzv-id="$(cat "$state/name")" \
      --rdzv-endpoint="$everywhere" --ft-node-name="$1" --ft-token-file="$state/token" --ft-events="$events" \
      "${after[@]}"
    code=$?
    case $code in 0 | 1 | 93) break ;; esac
    tries=$((tries + 1))
    [ "$tries" -le 3 ] || break
    say "the step on $1 ended with $code: starting it again"
    sleep 1
  done
  echo "$code" >"$state/exit.$SLURM_JOB_ID.$2"
}
if [ -z "$follows" ]; then
  lead
elif [ "$role" = relay ]; then
  helper take_over &
  helpers+=($!)
fi
helper leave_drained &
helpers+=($!)
for i in "${!nodes[@]}"; do
  node "${nodes[$i]}" $((first + i)) &
  steps+=($!)
done
for step in "${steps[@]}"; do
  while kill -0 "$step" 2>/dev/null; do wait "$step"; done  # a signal ends a wait
done

kill "${helpers[@]}" 2>/dev/null
[ "$role" = join ] || { date +%s >"$state/left"; } 2>/dev/null
codes=$(cat "$state/exit.$SLURM_JOB_ID".* 2>/dev/null | sort -un | xargs)
has() { case " $codes " in *" $1 "*) true ;; *) false ;; esac }
say "the steps ended with: ${codes:-nothing}"
if [ "$role" = join ]; then
  rm -f "$base/$me"
  has 0 || [ -n "$draining" ] || new | grep -q '"event":"node left".*"node":"'"${nodes[0]}"'"' && exit 0
  exit 1
fi
if [ "$(cat "$state/lead" 2>/dev/null)" != "$me" ] && ! has 0; then
  [ -z "$ended$draining" ] || exit 143  # the job that leads goes on
  joined "${nodes[0]}" || exec bash "$0" "$@"  # it has ended before our nodes had joined: start where it has saved
fi
if has 0 || [ -n "$ended" ]; then
  drop_successor
  find "$base" -maxdepth 1 -lname "$root" -delete
  rm -rf "$state"
  has 0 && exit 0
  exit 143
fi
if [ -n "$draining" ] && [ -n "$(successor)" ] && [ -n "$(state_of "$(successor)")" ]; then
  say "job $(successor) goes on"
  exit 0
fi
drop_successor

# A node that was excluded is left out of the next start, and of other people's jobs where we may say so.
bad=$(bad_nodes)
if [ -n "$bad" ] && [ "$drain_bad_nodes" = 1 ]; then
  scontrol update nodename="$bad" state=drain reason="outlast: excluded from job $me" || say "may not drain $bad"
fi

again=
step=$(new | grep -o '"step":[0-9]*' | cut -d: -f2 | sort -n | tail -1)
last=$(cat "$state/step" 2>/dev/null || echo 0)
if has 93; then
  say "not requeued: a retry would fail again"
elif [ -n "$draining" ]; then
  again="told to leave in time"
elif new | grep -q '"event":"job over".*"ending":"failed"'; then
  if [ "${step:-0}" -gt "$last" ]; then again="it failed, but got from step $last to $step"; fi
elif [ "$(wc -l <"$events")" -gt "$seen" ]; then
  again="it lost its nodes"
else
  say "the job has not even begun: its nodes say why"
fi
[ -z "$step" ] || echo "$step" >"$state/step"
if [ -z "$again" ] || [ "$requeue" = 0 ]; then
  [ -n "$again" ] || has 93 || say "not requeued: it failed, and made no progress since its start"
  rm -f "$state/token"
  has 93 && exit 93
  exit 1
fi
say "requeued: $again"
trap '' TERM  # that ends us; but not before all is said
if [ -n "$bad" ]; then
  scontrol requeuehold "$me" && scontrol update jobid="$me" ExcNodeList="$bad"
  scontrol release "$me"
else
  scontrol requeue "$me"
fi
sleep 60
exit 1
