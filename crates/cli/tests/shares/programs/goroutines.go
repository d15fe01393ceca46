// Waits for a line on stdin. Then it works for the processor time that the first argument says, in seconds: 10, 20 and 30 % of it in the functions of these names, and 40 % in a function
// that is inlined into caller, on several goroutines. See plain.c.
package main

import (
	"bufio"
	"os"
	"strconv"
	"sync"
	"syscall"
)

var sink uint64

func steps(count uint64) uint64 {
	x := count
	for i := uint64(0); i < count; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

//go:noinline
func ten(scale uint64) uint64 {
	x := scale
	for i := uint64(0); i < 1000*scale; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

//go:noinline
func twenty(scale uint64) uint64 {
	x := scale
	for i := uint64(0); i < 2000*scale; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

type thirty struct{ factor uint64 }

//go:noinline
func (t *thirty) run(scale uint64) uint64 {
	x := scale
	for i := uint64(0); i < t.factor*scale; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

//go:noinline
func caller(scale uint64) uint64 {
	return steps(4000*scale) + 1
}

func spent() float64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func main() {
	seconds := 1.0
	if len(os.Args) > 1 {
		seconds, _ = strconv.ParseFloat(os.Args[1], 64)
	}
	bufio.NewReader(os.Stdin).ReadString('\n')
	var group sync.WaitGroup
	for worker := uint64(1); worker <= 3; worker++ {
		group.Add(1)
		go func(random uint64) {
			defer group.Done()
			t := &thirty{3000}
			var x uint64
			for spent() < seconds {
				random = random*6364136223846793005 + 1442695040888963407
				scale := 1 + random>>60
				x += ten(scale) + twenty(scale) + t.run(scale) + caller(scale)
			}
			sink += x
		}(worker)
	}
	group.Wait()
}
