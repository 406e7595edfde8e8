package rabbitnode

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/redrive-mq/redrive/testenv/authority"
)

// secure gives the node a certificate, and is what rabbitmq.conf says of it: clients may
// have a certificate, and are the user of its common name by SASL EXTERNAL.
func (n *Node) secure() (string, error) {
	if n.opts.Authority == nil {
		return "", nil
	}
	ca, err := os.ReadFile(n.opts.Authority.CAFile())
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(n.dir, "ca.pem"), ca, 0o600); err != nil {
		return "", err
	}
	leaf := authority.Leaf{User: "rabbitmq", Hosts: []string{"127.0.0.1", "localhost"}}
	if err := n.opts.Authority.Issue(leaf, filepath.Join(n.dir, "cert.pem"), filepath.Join(n.dir, "key.pem")); err != nil {
		return "", err
	}
	return fmt.Sprintf(`
listeners.ssl.default = 127.0.0.1:%[1]d
ssl_options.cacertfile = %[3]s/ca.pem
ssl_options.certfile = %[3]s/cert.pem
ssl_options.keyfile = %[3]s/key.pem
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
auth_mechanisms.3 = EXTERNAL
management.ssl.ip = 127.0.0.1
management.ssl.port = %[2]d
management.ssl.cacertfile = %[3]s/ca.pem
management.ssl.certfile = %[3]s/cert.pem
management.ssl.keyfile = %[3]s/key.pem
`, n.amqps, n.https, n.inside), nil
}

func (n *Node) plugins() string {
	if n.opts.Authority == nil {
		return "[rabbitmq_management,rabbitmq_shovel].\n"
	}
	return "[rabbitmq_management,rabbitmq_shovel,rabbitmq_auth_mechanism_ssl].\n"
}

// SecureURL is where it speaks AMQP by TLS.
func (n *Node) SecureURL() string { return fmt.Sprintf("amqps://guest:guest@127.0.0.1:%d/", n.amqps) }

// SecureManagement is where its management API is by TLS.
func (n *Node) SecureManagement() string {
	return fmt.Sprintf("https://guest:guest@127.0.0.1:%d", n.https)
}
