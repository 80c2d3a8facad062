set -u
me=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}  # the bare id would be the whole array
me=${me:-$SLURM_JOB_ID}
state=$base/${join:-$me}
say() { echo "$(date +%T) outlast batch: $*" >&2; }
if [ -n "${SLURM_HET_SIZE:-}" ]; then
  say "heterogeneous jobs are not supported: submit one job of one kind of node"
  exit 93
fi
mkdir -p "$state" && chmod 700 "$base" "$state" || exit 93

# Asked anew at each start: after a requeue the nodes are others.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=0
if [ -n "$join" ]; then
  [ -s "$state/places" ] || { say "job $join has no state in $base: is it running, and yours?"; exit 93; }
  first=$((SLURM_JOB_ID * 1000))  # ranks after those of the job that is joined
else
  port=$((20000 + ${SLURM_JOB_ID} * 7 % 12000))
  printf '%s\n' "${nodes[@]/%/:$port}" >"$state/places"
  rm -f "$state"/exit.*
fi
places=$(paste -sd, "$state/places")
name=${join:-$me}
events=$state/events.jsonl
touch "$events"
seen=$(wc -l <"$events")  # what this start adds comes after

draining= ended=
steps=()
drain() {
  draining=1
  say "$1: all ranks save, and this job's nodes leave"
  scancel --signal=URG "$SLURM_JOB_ID"  # every step of this job, and not this script
}
trap 'drain "the time limit is near"' USR1
trap 'ended=1; drain "told to end"' TERM  # scancel or preemption: Slurm decides what comes next

# One step per node: a node's end is one step's end. An agent that was killed is started again while its node lives.
node() {
  local code tries=0
  while :; do
    srun --nodes=1 --ntasks=1 --nodelist="$1" --overlap --no-kill --kill-on-bad-exit=0 \
      "${srun_options[@]}" env SLURM_PROCID="$2" "${before[@]}" --rdzv-id="outlast-$name" --rdzv-endpoint="$places" \
      --ft-node-name="$1" --ft-token-file="$state/token" --ft-events="$events" "${after[@]}"
    code=$?
    case $code in 0 | 1 | 93) break ;; esac
    tries=$((tries + 1))
    [ "$tries" -le 3 ] || break
    say "the step on $1 ended with $code: starting it again"
    sleep 1
  done
  echo "$code" >"$state/exit.$SLURM_JOB_ID.$2"
}
for i in "${!nodes[@]}"; do
  node "${nodes[$i]}" $((first + i)) &
  steps+=($!)
done
for step in "${steps[@]}"; do
  while kill -0 "$step" 2>/dev/null; do wait "$step"; done  # a signal ends a wait
done

codes=$(cat "$state"/exit."$SLURM_JOB_ID".* 2>/dev/null | sort -un | xargs)
has() { case " $codes " in *" $1 "*) true ;; *) false ;; esac }
new() { tail -n +$((seen + 1)) "$events"; }
say "the steps ended with: ${codes:-nothing}"
if [ -n "$join" ]; then
  has 0 || [ -n "$draining" ] && exit 0
  exit 1
fi
if has 0 || [ -n "$ended" ]; then
  rm -rf "$state"
  has 0 && exit 0
  exit 143
fi

# A node that was excluded is left out of the next start, and of other people's jobs where we may say so.
bad=$(grep -ho '"event":"node excluded"[^}]*' "$events" | grep -o '"node":"[^"]*"' | cut -d'"' -f4 | sort -u | paste -sd,)
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
else
  again="it lost its nodes"
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
wait
sleep 60
exit 1
