// The official Go client as a child process that does what each JSON line on its standard input says.
//
//	probe NAMESERVER NAME
//	{"do": "send", "topic": "t", "mode": "sync", "messages": [{"body": "b", "tags": "a", "keys": "k", "properties": {}}]}
//	-> {"ok": [{"msgId": "...", "queueId": 0, "queueOffset": 0}]}
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const sendTime = 10 * time.Second

type described struct {
	Body       string            `json:"body"`
	Tags       string            `json:"tags"`
	Keys       string            `json:"keys"`
	Properties map[string]string `json:"properties"`
	Delay      int               `json:"delay"`
	Queue      string            `json:"queue"` // messages with the same value go to the same queue
}

type order struct {
	Do         string      `json:"do"`
	Topic      string      `json:"topic"`
	Mode       string      `json:"mode"`
	Messages   []described `json:"messages"`
	Group      string      `json:"group"`
	Expression string      `json:"expression"`
	SQL        bool        `json:"sql"`
	Ordered    bool        `json:"ordered"`
	Fail       int         `json:"fail"`   // how often the listener fails for each message
	Decide     []string    `json:"decide"` // of a transaction: what the sender says, then what it says when asked
}

type received struct {
	MsgID       string            `json:"msgId"`
	Body        string            `json:"body"`
	Topic       string            `json:"topic"`
	Tags        string            `json:"tags"`
	Keys        string            `json:"keys"`
	Properties  map[string]string `json:"properties"`
	QueueID     int               `json:"queueId"`
	QueueOffset int64             `json:"queueOffset"`
	Reconsumed  int32             `json:"reconsumeTimes"`
}

type probe struct {
	nameserver, name string
	mutex            sync.Mutex
	sender           rocketmq.Producer
	consumers        map[string]rocketmq.PushConsumer
	heard            map[string][]received
}

func main() {
	rlog.SetLogLevel("warn")
	p := &probe{
		nameserver: os.Args[1], name: os.Args[2],
		consumers: map[string]rocketmq.PushConsumer{}, heard: map[string][]received{},
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var given order
		answer := map[string]any{}
		if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
			answer["error"], answer["code"] = err.Error(), -1
		} else if ok, err := p.do(given); err != nil {
			answer["error"], answer["code"] = err.Error(), -1
		} else {
			answer["ok"] = ok
		}
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
	}
	for _, each := range p.consumers {
		_ = each.Shutdown()
	}
	if p.sender != nil {
		_ = p.sender.Shutdown()
	}
}

func (p *probe) do(given order) (any, error) {
	switch given.Do {
	case "hello":
		return p.name, nil
	case "send":
		return p.send(given)
	case "transaction":
		return p.transaction(given)
	case "subscribe":
		return nil, p.subscribe(given)
	case "received":
		p.mutex.Lock()
		defer p.mutex.Unlock()
		return append([]received{}, p.heard[given.Group]...), nil
	case "unsubscribe":
		err := p.consumers[given.Group].Shutdown()
		delete(p.consumers, given.Group)
		return nil, err
	}
	return nil, fmt.Errorf("unknown order %q", given.Do)
}

func (p *probe) message(topic string, each described) *primitive.Message {
	made := primitive.NewMessage(topic, []byte(each.Body))
	for name, value := range each.Properties {
		made.WithProperty(name, value)
	}
	if each.Tags != "" {
		made.WithTag(each.Tags)
	}
	if each.Keys != "" {
		made.WithKeys(strings.Fields(each.Keys))
	}
	if each.Delay > 0 {
		made.WithDelayTimeLevel(each.Delay)
	}
	if each.Queue != "" {
		made.WithShardingKey(each.Queue)
	}
	return made
}

func (p *probe) send(given order) (any, error) {
	if p.sender == nil {
		made, err := rocketmq.NewProducer(
			producer.WithNameServer([]string{p.nameserver}), producer.WithGroupName(p.name+"_p"),
			producer.WithInstanceName(p.name+"_p"), producer.WithSendMsgTimeout(sendTime),
			producer.WithQueueSelector(producer.NewHashQueueSelector()),
		)
		if err != nil {
			return nil, err
		}
		if err := made.Start(); err != nil {
			return nil, err
		}
		p.sender = made
	}
	ctx := context.Background()
	var messages []*primitive.Message
	for _, each := range given.Messages {
		messages = append(messages, p.message(given.Topic, each))
	}
	if given.Mode == "batch" {
		result, err := p.sender.SendSync(ctx, messages...)
		if err != nil {
			return nil, err
		}
		return []received{place(result)}, nil
	}
	sent := make([]received, len(messages))
	var waiting sync.WaitGroup
	var failure error
	for index, message := range messages {
		index := index
		switch given.Mode {
		case "oneway":
			if err := p.sender.SendOneWay(ctx, message); err != nil {
				return nil, err
			}
		case "async":
			waiting.Add(1)
			err := p.sender.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
				p.mutex.Lock()
				defer p.mutex.Unlock()
				defer waiting.Done()
				if err != nil {
					failure = err
				} else {
					sent[index] = place(result)
				}
			}, message)
			if err != nil {
				return nil, err
			}
		default:
			result, err := p.sender.SendSync(ctx, message)
			if err != nil {
				return nil, err
			}
			sent[index] = place(result)
		}
	}
	waiting.Wait()
	return sent, failure
}

func place(result *primitive.SendResult) received {
	return received{MsgID: result.MsgID, QueueID: result.MessageQueue.QueueId, QueueOffset: result.QueueOffset}
}

var states = map[string]primitive.LocalTransactionState{
	"commit": primitive.CommitMessageState, "rollback": primitive.RollbackMessageState, "unknown": primitive.UnknowState,
}

type decider struct {
	now, asked primitive.LocalTransactionState
}

func (d decider) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	return d.now
}

func (d decider) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	return d.asked
}

// One producer for each order: a listener belongs to it, and it must live until the broker has asked.
func (p *probe) transaction(given order) (any, error) {
	decision := decider{states[given.Decide[0]], states[given.Decide[len(given.Decide)-1]]}
	made, err := rocketmq.NewTransactionProducer(
		decision, producer.WithNameServer([]string{p.nameserver}), producer.WithGroupName(given.Group),
		producer.WithInstanceName(given.Group), producer.WithSendMsgTimeout(sendTime),
	)
	if err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	result, err := made.SendMessageInTransaction(context.Background(), p.message(given.Topic, given.Messages[0]))
	if err != nil {
		return nil, err
	}
	return place(result.SendResult), nil
}

func (p *probe) subscribe(given order) error {
	made, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{p.nameserver}), consumer.WithGroupName(given.Group),
		consumer.WithInstance(given.Group), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(given.Ordered), consumer.WithConsumerModel(consumer.Clustering),
	)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: given.Expression}
	if given.SQL {
		selector.Type = consumer.SQL92
	}
	err = made.Subscribe(given.Topic, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			p.mutex.Lock()
			defer p.mutex.Unlock()
			result := consumer.ConsumeSuccess
			for _, each := range messages {
				p.heard[given.Group] = append(p.heard[given.Group], received{
					MsgID: each.MsgId, Body: string(each.Body), Topic: each.Topic, Tags: each.GetTags(), Keys: each.GetKeys(),
					Properties: each.GetProperties(), QueueID: each.Queue.QueueId, QueueOffset: each.QueueOffset,
					Reconsumed: each.ReconsumeTimes,
				})
				if int(each.ReconsumeTimes) < given.Fail {
					result = consumer.ConsumeRetryLater
				}
			}
			return result, nil
		})
	if err != nil {
		return err
	}
	p.consumers[given.Group] = made
	return made.Start()
}
