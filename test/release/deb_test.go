package release_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// install mounts, over this system, a layer that is gone with the process, installs the package
// there twice, as an upgrade does, and runs what the unit runs, as its user.
const install = `
set -eu
mount -t tmpfs none "$LAYER"
mkdir "$LAYER/upper" "$LAYER/work" "$LAYER/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$LAYER/upper,workdir=$LAYER/work" "$LAYER/root"
mount -t proc proc "$LAYER/root/proc"
cd "$LAYER/root"
cp "$DEB" tmp/redrive.deb
chroot . dpkg --no-triggers --force-depends -i /tmp/redrive.deb
sed -i "s/127.0.0.1:8250/$ADDRESS/" etc/redrive/redrive.yaml
cat "$CONFIG" >> etc/redrive/redrive.yaml
echo "REDRIVE_BROKER_URL=$BROKER" >> etc/redrive/redrive.env
chroot . dpkg --no-triggers --force-depends -i /tmp/redrive.deb
grep -q "$ADDRESS" etc/redrive/redrive.yaml
[ "$(chroot . stat -c '%U %G %a' /etc/redrive/redrive.env)" = "root redrive 640" ]
for file in usr/share/man/man1/redrive-serve.1 usr/share/bash-completion/completions/redrive usr/share/redrive/redrive.example.yaml; do
	[ -s "$file" ] || [ -s "$file.gz" ]
done
if [ -x bin/systemd-analyze ]; then
	chroot . systemd-analyze verify --man=no /usr/lib/systemd/system/redrive.service
fi
unit() { sed -n "s/^$1=-\{0,1\}//p" usr/lib/systemd/system/redrive.service; }
mkdir -p "var/lib/$(unit StateDirectory)"
chroot . chown "$(unit User):$(unit Group)" "/var/lib/$(unit StateDirectory)"
chmod "$(unit StateDirectoryMode)" "var/lib/$(unit StateDirectory)"
set -a
. "./$(unit EnvironmentFile)"
set +a
before=$(unit ExecStartPre)
start=$(unit ExecStart)
as="chroot --userspec=$(unit User):$(unit Group) . env --chdir=$(unit WorkingDirectory)"
$as $before
echo installed now
# What runs as another user is sent no signal when its parent ends; this shell is.
$as $start &
service=$!
trap 'kill -TERM $service' TERM
wait $service || wait $service
`

// installed holds that the service of the package retries and parks a message.
func installed(t *testing.T, deb string, v *brokertest.VHost) {
	dir := t.TempDir()
	config := filepath.Join(dir, "policies.yaml")
	if err := os.WriteFile(config, []byte("policies: [{name: orders, queues: [orders], attempts: 2, backoff: {fixed: 100ms}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	// Root, since a package has files of other users; and what it starts ends with it.
	command := []string{"unshare", "--mount", "--pid", "--fork", "--kill-child=TERM", "sh", "-c", install}
	if os.Getuid() != 0 {
		command = append([]string{"sudo", "-n", "--preserve-env=LAYER,DEB,ADDRESS,CONFIG,BROKER"}, command...)
	}
	c := exec.Command(command[0], command[1:]...)
	c.Env = append(os.Environ(), "LAYER="+t.TempDir(), "DEB="+deb, "ADDRESS="+address, "CONFIG="+config, "BROKER="+v.ServiceURL(brokertest.Works("orders")))
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	said := func() string { data, _ := os.ReadFile(log.Name()); return string(data) }
	t.Cleanup(func() {
		// unshare itself ignores SIGTERM; killed, it has the service sent one.
		_ = c.Process.Kill()
		<-ended
		brokertest.Eventually(t, "the service has stopped", func() bool { return strings.Contains(said(), "redrive has stopped") })
		if t.Failed() {
			t.Logf("it says:\n%s", said())
		}
	})

	v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters})
	running := func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("it ended: %v", err)
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	}
	for deadline := time.Now().Add(5 * time.Minute); running() && !strings.Contains(said(), "installed now\n"); {
		if time.Now().After(deadline) {
			t.Fatal("it is not installed after five minutes")
		}
	}
	status := func() string {
		running()
		s := exec.Command(filepath.Join(filepath.Dir(deb), "redrive"), "status", "-o", "json")
		s.Env = append(os.Environ(), "REDRIVE_ADDRESS="+address)
		out, _ := s.Output()
		return strings.ReplaceAll(string(out), " ", "")
	}
	brokertest.Eventually(t, "the service is ready", func() bool { return strings.Contains(status(), `"ready":true`) })
	consumer := v.Consume("orders")
	v.Publish("", "orders", amqp.Publishing{Body: []byte("one")})
	consumer.Reject()
	if d := consumer.Reject(); d.Headers[wire.HeaderAttempt] != int64(1) {
		t.Errorf("it came again with %v", d.Headers)
	}
	brokertest.Eventually(t, "the message is parked", func() bool { return strings.Contains(status(), `"parked":1,`) })
}

func freeAddress(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	return free.Addr().String()
}
