#!/bin/sh
# First process of the guest: loads the modules, puts a tmpfs over the host's read-only files, sets
# Soft-RoCE up, runs the command and reports its status. /job is made anew for each run.
export PATH=/bin

mount -t proc proc /proc
mount -t devtmpfs dev /dev
mount -t sysfs sys /sys
echo "verbcast-guest: up" >/dev/console
exec </dev/null >/dev/console 2>&1
mkdir -p /dev/pts /dev/shm /lower /upper /root
ln -sf /proc/self/fd /dev/fd
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm

# report WORD...: one line to the host
report() { echo "$*" >/dev/vport0p1; }

fail() {
    echo "verbcast-guest: $*"
    report "FAIL $*"
    sleep 5
    poweroff -f
}

load() {
    while read -r module; do
        insmod "/modules/$module" || echo "verbcast-guest: cannot load $module"
    done <"$1"
}

load /modules/first
echo "verbcast-guest: first modules are loaded"
# The modules of Soft-RoCE load while the file systems are mounted.
load /modules/then &
loading=$!

tries=0
while [ ! -c /dev/vport0p3 ] || [ ! -c /dev/vport0p2 ] || [ ! -c /dev/vport0p1 ]; do
    tries=$((tries + 1))
    [ $tries -gt 1000 ] && { echo "verbcast-guest: no control port"; poweroff -f; }
    usleep 10000
done

options=trans=virtio,version=9p2000.L,msize=1048576,cache=loose
mount -t 9p -o $options,ro host /lower || fail "cannot mount the host's files"
mount -t tmpfs tmpfs /upper
mkdir /upper/upper /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/upper,workdir=/upper/work overlay /root ||
    fail "cannot mount the overlay"

# keep N PATH, restore N PATH: hold a file or folder while its surroundings are covered, and show it
# again in the same place
keep() {
    mkdir -p /kept
    if [ -d "$2" ]; then mkdir "/kept/$1"; else : >"/kept/$1"; fi
    mount --bind "$2" "/kept/$1" || fail "cannot keep $2"
}
restore() {
    if [ -d "/kept/$1" ]; then
        mkdir -p "$2"
    else
        mkdir -p "${2%/*}"
        [ -e "$2" ] || : >"$2"
    fi
    mount --bind "/kept/$1" "$2" || fail "cannot restore $2"
}

. /job/mounts

for directory in proc sys dev; do
    mkdir -p /root/$directory
    mount --rbind /$directory /root/$directory
done
echo "verbcast-guest: files are mounted"
wait $loading
echo "verbcast-guest: modules are loaded"
ip link set lo up

chroot /root /bin/sh -c "$(cat /job/setup)" >/setup.log 2>&1 || {
    cat /setup.log
    fail "Soft-RoCE set-up failed: $(tail -n 1 /setup.log)"
}

# The streams end with a mark, so that the host knows that it has everything.
pump() {
    (
        cat "/$1" &
        echo $! >"/$1.pid"
        wait
        cat /job/end
    ) >"$2" 2>/dev/null
}
mkfifo /stdout /stderr
pump stdout /dev/vport0p2 &
out=$!
pump stderr /dev/vport0p3 &
err=$!

ulimit -l unlimited
ulimit -c 0
report START
chroot /root /bin/sh -c "$(cat /job/command)" </dev/null >/stdout 2>/stderr
status=$?

# A process that the command left behind may hold the pipes open: it has two seconds.
tries=0
while [ $tries -lt 200 ] && { kill -0 $out || kill -0 $err; } 2>/dev/null; do
    tries=$((tries + 1))
    usleep 10000
done
kill "$(cat /stdout.pid)" "$(cat /stderr.pid)" 2>/dev/null
wait $out $err
sync
report "STATUS $status"
sleep 60
poweroff -f
