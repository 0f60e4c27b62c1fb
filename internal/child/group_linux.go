package child

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// group is the directory of a control group that holds a program with all that it starts; "" where none can be had. The
// kernel kills all of a group at once (cgroup.kill of control group v2, Linux 5.14): also what forks faster than a guard can
// look, and what is left when guard and executor were killed in the same moment. Making one takes a right to the group that
// this process is in: root has it, and a service to which systemd delegates it.
type group string

const groupPrefix = "agentrun-"

// groupOf is the group of a guard's program, whether it exists or not. The name holds the process id and the namespace in
// which it counts: others may see the same directory.
func groupOf(guard int) group {
	base, space := groupBase(), pidSpace()
	if base == "" || space == "" {
		return ""
	}
	return group(filepath.Join(base, groupPrefix+space+"-"+strconv.Itoa(guard)))
}

// groupBase is the directory of this process's own group, "" without control group v2: cgroups(7), proc_pid_mountinfo(5).
func groupBase() string {
	own := ""
	lines, _ := os.ReadFile("/proc/self/cgroup")
	for line := range bytes.Lines(lines) {
		if rest, ok := bytes.CutPrefix(line, []byte("0::")); ok {
			own = string(bytes.TrimSpace(rest))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range bytes.Lines(mounts) {
		before, after, _ := strings.Cut(string(line), " - ")
		f := strings.Fields(before)
		if own == "" || len(f) < 5 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		if below, ok := strings.CutPrefix(own, strings.TrimSuffix(f[3], "/")); ok { // f[3] is the group that is mounted at f[4]
			return filepath.Join(f[4], below)
		}
	}
	return ""
}

// pidSpace names the namespace of process ids.
func pidSpace() string {
	link, _ := os.Readlink("/proc/self/ns/pid")
	return strings.TrimSuffix(strings.TrimPrefix(link, "pid:["), "]")
}

// open makes the group and opens it; nil where that is not to be had.
func (g group) open() *os.File {
	if g == "" || os.Mkdir(string(g), 0o700) != nil {
		return nil
	}
	dir, err := os.Open(string(g))
	if err == nil {
		_, err = os.Stat(filepath.Join(string(g), "cgroup.kill"))
	}
	if err != nil {
		g.remove()
		return nil
	}
	return dir
}

// kill ends all that is in the group. What is not there needs none.
func (g group) kill() {
	if g != "" {
		_ = os.WriteFile(filepath.Join(string(g), "cgroup.kill"), []byte("1"), 0)
	}
}

// remove takes the group away when nothing is in it any more, which after a kill takes a moment.
func (g group) remove() {
	for range 100 {
		if g == "" || syscall.Rmdir(string(g)) != syscall.EBUSY {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// KillLeftovers ends what programs have left whose guard was killed together with the process that had started it, as far as
// they had a control group, and says how many groups there were. Call it before anything is concluded from their silence.
func KillLeftovers() (found int) {
	base, space := groupBase(), pidSpace()
	if base == "" || space == "" {
		return 0
	}
	names, _ := filepath.Glob(filepath.Join(base, groupPrefix+space+"-*"))
	for _, name := range names {
		var guard int
		if _, err := fmt.Sscanf(filepath.Base(name), groupPrefix+space+"-%d", &guard); err != nil || lives(guard) {
			continue
		}
		g := group(name)
		g.kill()
		g.remove()
		found++
	}
	return found
}

// lives says whether there is a process of that id; one that only waits to be reaped does nothing any more.
func lives(pid int) bool {
	fields := statOf(strconv.Itoa(pid))
	return len(fields) > 0 && string(fields[0]) != "Z"
}

// statOf is what the kernel says of a process behind its name, "pid (name) state parent …": the name may hold anything. It is
// nil if there is no such process.
func statOf(pid string) [][]byte {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return nil
	}
	return bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
}
