package notify

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"net"
	netmail "net/mail"
	"net/smtp"
	"net/url"
	"slices"
	"strings"
	"time"
)

// account is a mail server and its settings.
type account struct {
	host, port, user, password string
	clientHost                 string // our name, in EHLO
	// encryption: ImplicitTLS, ExplicitTLS (STARTTLS or nothing), None, or Auto (TLS on
	// port 465, else STARTTLS where there is that).
	encryption string
	from       *netmail.Address
	to         []string
}

// mail sends by SMTP. A password is sent over TLS only (net/smtp ensures that).
func mail(u *url.URL, _ *Route) (send, error) {
	q := u.Query()
	if u.Hostname() == "" || !hasOnly(q, "from", "fromname", "to", "encryption", "clienthost") {
		return nil, errURL
	}
	at := account{host: u.Hostname(), port: cmp.Or(u.Port(), "25"), clientHost: cmp.Or(q.Get("clienthost"), "localhost"), user: u.User.Username()}
	at.password, _ = u.User.Password()
	at.encryption = strings.ToLower(cmp.Or(q.Get("encryption"), "auto"))
	if !slices.Contains([]string{"auto", "none", "explicittls", "implicittls"}, at.encryption) {
		return nil, errURL
	}
	if at.encryption == "auto" && at.port == "465" {
		at.encryption = "implicittls"
	}
	var err error
	if at.from, err = netmail.ParseAddress(q.Get("from")); err != nil {
		return nil, err
	}
	at.from.Name = cmp.Or(q.Get("fromname"), at.from.Name)
	all, err := netmail.ParseAddressList(q.Get("to"))
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		at.to = append(at.to, a.Address)
	}
	return func(ctx context.Context, c *client, m *Message) error {
		conn, err := c.dial.DialContext(ctx, "tcp", net.JoinHostPort(at.host, at.port))
		if err != nil {
			return err
		}
		defer conn.Close()
		// net/smtp takes no context.
		deadline, _ := ctx.Deadline()
		_ = conn.SetDeadline(deadline)
		defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
		return sendMail(conn, &at, letter(at.from, at.to, m))
	}, nil
}

func sendMail(conn net.Conn, at *account, text []byte) error {
	security := &tls.Config{ServerName: at.host, MinVersion: tls.VersionTLS12}
	if at.encryption == "implicittls" {
		conn = tls.Client(conn, security)
	}
	s, err := smtp.NewClient(conn, at.host)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Hello(at.clientHost); err != nil {
		return err
	}
	_, secure := conn.(*tls.Conn)
	if can, _ := s.Extension("STARTTLS"); can && !secure && at.encryption != "none" {
		if err := s.StartTLS(security); err != nil {
			return err
		}
	} else if !secure && at.encryption == "explicittls" {
		return errors.New("the mail server has no STARTTLS, which the URL requires")
	}
	if at.user != "" {
		if err := s.Auth(smtp.PlainAuth("", at.user, at.password, at.host)); err != nil {
			return err
		}
	}
	if err := s.Mail(at.from.Address); err != nil {
		return err
	}
	for _, a := range at.to {
		if err := s.Rcpt(a); err != nil {
			return err
		}
	}
	w, err := s.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_ = s.Quit() // the mail is accepted, whatever the server answers to this
	return nil
}

// letter is plain text in base64, so that no line of it can be a header or a command.
func letter(from *netmail.Address, to []string, m *Message) []byte {
	var b strings.Builder
	for _, h := range [][2]string{
		{"From", from.String()}, {"To", strings.Join(to, ", ")}, {"Subject", mime.QEncoding.Encode("utf-8", cut(m.title(plainText), 200))},
		{"Date", m.At.Format(time.RFC1123Z)}, {"MIME-Version", "1.0"}, {"Content-Type", "text/plain; charset=utf-8"},
		{"Content-Transfer-Encoding", "base64"}, {"Auto-Submitted", "auto-generated"},
	} {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	b.WriteString("\r\n")
	text := base64.StdEncoding.EncodeToString([]byte(body(m, plainText)))
	for len(text) > 76 {
		b.WriteString(text[:76] + "\r\n")
		text = text[76:]
	}
	b.WriteString(text + "\r\n")
	return []byte(b.String())
}
