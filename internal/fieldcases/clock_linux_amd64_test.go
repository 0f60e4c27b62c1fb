package fieldcases

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// shiftClock sets this process's wall clock off by d, and nothing else: libfaketime works through libc, which Go does not
// use. Go reads the clock through the kernel's vDSO, at an address that the runtime keeps in a variable; a stub is put
// before it that adds d to what CLOCK_REALTIME says.
func shiftClock(d time.Duration) error {
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close() //nolint:errcheck // nothing is buffered
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	read, err := vdsoClock(mem, string(maps))
	if err != nil {
		return err
	}
	stub, err := syscall.Mmap(-1, 0, os.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE|syscall.PROT_EXEC, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return err
	}
	code := []byte{0x57, 0x56, 0x48, 0x83, 0xec, 0x08, 0x48, 0xb8} // push rdi; push rsi; sub rsp, 8; mov rax, …
	code = binary.LittleEndian.AppendUint64(code, read)
	code = append(code, 0xff, 0xd0, 0x48, 0x83, 0xc4, 0x08, 0x5e, 0x5f)       // call rax; add rsp, 8; pop rsi; pop rdi
	code = append(code, 0x85, 0xff, 0x75, 0x07, 0x48, 0x81, 0x06)             // test edi, edi; jnz +7; add qword [rsi], …
	code = binary.LittleEndian.AppendUint32(code, uint32(int32(d.Seconds()))) //nolint:gosec // an hour
	code = append(code, 0xc3)                                                 // ret
	copy(stub, code)
	where, err := holding(mem, string(maps), read)
	if err != nil {
		return err
	}
	before := time.Now()
	at := binary.LittleEndian.AppendUint64(nil, uint64(uintptr(unsafe.Pointer(&stub[0]))))
	if _, err := mem.WriteAt(at, int64(where)); err != nil { //nolint:gosec // an address of this process
		return err
	}
	if got := time.Now().Round(0).Sub(before.Round(0)); (got - d).Abs() > time.Minute {
		return fmt.Errorf("the clock went by %s, wanted %s", got, d)
	}
	return nil
}

// mapping is one line of /proc/self/maps.
func mappings(maps string, fn func(from, to uint64, line string)) {
	for line := range strings.Lines(maps) {
		from, rest, _ := strings.Cut(line, "-")
		to, _, _ := strings.Cut(rest, " ")
		a, err1 := strconv.ParseUint(from, 16, 64)
		b, err2 := strconv.ParseUint(to, 16, 64)
		if err1 == nil && err2 == nil {
			fn(a, b, line)
		}
	}
}

// vdsoClock is the address of the kernel's clock_gettime in this process.
func vdsoClock(mem *os.File, maps string) (addr uint64, err error) {
	err = fmt.Errorf("no vDSO")
	mappings(maps, func(from, to uint64, line string) {
		if !strings.Contains(line, "[vdso]") {
			return
		}
		image := make([]byte, to-from)
		if _, err = mem.ReadAt(image, int64(from)); err != nil { //nolint:gosec // an address of this process
			return
		}
		var f *elf.File
		if f, err = elf.NewFile(bytes.NewReader(image)); err != nil {
			return
		}
		var symbols []elf.Symbol
		if symbols, err = f.DynamicSymbols(); err != nil {
			return
		}
		for _, s := range symbols {
			if s.Name == "__vdso_clock_gettime" {
				addr = from + s.Value
			}
		}
	})
	if err == nil && addr == 0 {
		err = fmt.Errorf("the vDSO has no clock")
	}
	return addr, err
}

// holding finds the one variable of this program that has the value.
func holding(mem *os.File, maps string, value uint64) (where uint64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	found, end := 0, uint64(0)
	mappings(maps, func(from, to uint64, line string) {
		own := strings.Contains(line, self)
		if own || from == end {
			end = to // what follows the file's own mappings without a gap are its zeroed variables
		}
		if end != to || !strings.Contains(line, " rw") {
			return
		}
		data := make([]byte, to-from)
		if _, err := mem.ReadAt(data, int64(from)); err != nil { //nolint:gosec // an address of this process
			return
		}
		for i := 0; i+8 <= len(data); i += 8 {
			if binary.LittleEndian.Uint64(data[i:]) == value {
				found++
				where = from + uint64(i) //nolint:gosec // an offset
			}
		}
	})
	if found != 1 {
		return 0, fmt.Errorf("%d variables hold the clock's address", found)
	}
	return where, nil
}
