package child

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Inherited are the variables that a program gets from this process's environment, where they are set. Nothing else is
// passed on: credentials of the runtime are none of a tool's business.
var Inherited = []string{
	"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
}

// Program is what Start starts.
type Program struct {
	Argv []string            // no shell; Argv[0] without a slash is looked for in the PATH that the program gets
	Env  []map[string]string // beside Inherited; a later one wins
	// Stderr takes its standard error; it is the caller's, who closes it. nil: nowhere.
	Stderr *os.File
	Setting
}

// Setting is what a program finds when it begins, beside its environment. The zero value is the default.
type Setting struct {
	Cwd    string            // absolute; "": this process's
	User   string            // name or uid, and after a colon a group's; "": this process's. Without other groups than that
	Umask  string            // octal; "": 022
	Limits map[string]uint64 // by LimitNames, both the soft and the hard one; cpu in seconds, sizes in bytes
}

// LimitNames are the limits that can be set, by the names of getrlimit(2).
var LimitNames = []string{"as", "core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "stack"}

// Check says whether this system can start anything so: nil, or a *NotStarted. Whether this process may, here and now, Try
// says.
func (s *Setting) Check() error {
	const linux = "needs Linux"
	_, mask := s.umask()
	switch {
	case s.Cwd != "" && !filepath.IsAbs(s.Cwd):
		return fault("cwd", "must be an absolute path")
	case strings.ContainsRune(s.Cwd, 0):
		return fault("cwd", "holds a NUL byte")
	case s.User != "" && !Contained:
		return fault("user", linux)
	case s.Umask != "" && !Contained:
		return fault("umask", linux)
	case len(s.Limits) > 0 && !Contained:
		return fault("limits", linux)
	}
	for name := range s.Limits {
		if !slices.Contains(LimitNames, name) {
			return fault("limits."+name, "is none of %s", strings.Join(LimitNames, ", "))
		}
	}
	return mask
}

// NotStarted says why a program cannot be started: nothing ran.
type NotStarted struct {
	Key string // what of the program is at fault: argv, cwd, user, umask, limits or one of them as limits.nofile; "" if nothing
	Err error
}

func (e *NotStarted) Error() string {
	if e.Key == "" {
		return "the program cannot be started: " + e.Err.Error()
	}
	return e.Key + ": " + e.Err.Error()
}

func (e *NotStarted) Unwrap() error { return e.Err }

func fault(key, format string, args ...any) error {
	return &NotStarted{Key: key, Err: fmt.Errorf(format, args...)}
}

const defaultUmask = 0o022

func (s *Setting) umask() (int, error) {
	if s.Umask == "" {
		return defaultUmask, nil
	}
	mask, err := strconv.ParseUint(s.Umask, 8, 32)
	if err != nil || mask > 0o777 {
		return 0, fault("umask", "must be three octal digits")
	}
	return int(mask), nil
}

// identity is a user by numbers, and what its environment says of it.
type identity struct {
	uid, gid   uint32
	name, home string // "" if the system does not know the user
}

// identify reads "user" and "user:group", each a name or a number.
func identify(s string) (*identity, error) {
	who, group, grouped := strings.Cut(s, ":")
	u, err := user.Lookup(who)
	if number(who) {
		u, err = user.LookupId(who)
	}
	var id identity
	switch {
	case err == nil:
		id.name, id.home = u.Username, u.HomeDir
	case !number(who):
		return nil, fault("user", "there is no user %q on this machine", who)
	case !grouped:
		return nil, fault("user", "there is no user %s on this machine, so its group must be named: %s:GID", who, who)
	default:
		u = &user.User{Uid: who}
	}
	if grouped {
		u.Gid = group
		if !number(group) {
			g, err := user.LookupGroup(group)
			if err != nil {
				return nil, fault("user", "there is no group %q on this machine", group)
			}
			u.Gid = g.Gid
		}
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	// The highest number means "leave it as it is" to the kernel.
	if err1 != nil || err2 != nil || max(uid, gid) == 1<<32-1 {
		return nil, fault("user", "%s is no user's number and group's number", s)
	}
	id.uid, id.gid = uint32(uid), uint32(gid)
	return &id, nil
}

func number(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// environment is what is inherited, what belongs to the user, and what is named. as may be nil.
func (p *Program) environment(as *identity) map[string]string {
	out := map[string]string{}
	for _, name := range Inherited {
		if v, ok := os.LookupEnv(name); ok {
			out[name] = v
		}
	}
	if as != nil {
		own := map[string]string{"HOME": as.home, "USER": as.name, "LOGNAME": as.name, "TMPDIR": ""}
		for name, v := range own {
			if out[name] = v; v == "" {
				delete(out, name)
			}
		}
	}
	for _, vars := range p.Env {
		for name, v := range vars {
			out[name] = v
		}
	}
	return out
}

// list writes an environment as the system wants it. Never nil: to os/exec that means everything.
func list(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for name, v := range env {
		out = append(out, name+"="+v)
	}
	slices.Sort(out)
	return out
}

// find is the program's file. One that is named with a slash is taken from the directory that the program starts in; the
// others are looked for in absolute directories only.
func (p *Program) find(path string) (string, error) {
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		return "", fault("argv", "names no program")
	}
	name := p.Argv[0]
	if strings.ContainsRune(name, filepath.Separator) {
		return name, nil
	}
	denied := false
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		file := filepath.Join(dir, name)
		info, err := os.Stat(file)
		switch {
		case errors.Is(err, fs.ErrPermission):
			denied = true
		case err != nil || info.IsDir():
		case info.Mode()&0o111 == 0:
			denied = true
		default:
			return file, nil
		}
	}
	if denied {
		return "", fault("argv", "%s may not be executed", name)
	}
	return "", fault("argv", "there is no program %s in PATH", name)
}
