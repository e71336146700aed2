"""REINFORCE with a baseline: an agent learns to walk to the right end of a corridor."""

import meta
import meta.model as nn

CELLS, EPISODES, LIMIT, GAMMA = 6, 60, 30, 0.95


class Corridor:
    def reset(self):
        self.at, self.time = CELLS // 2, 0
        return self.state()

    def state(self):
        return meta.one_hot(meta.array(self.at), CELLS).astype(meta.float32)

    def step(self, action):
        self.at = max(0, min(CELLS - 1, self.at + (1 if action == 1 else -1)))
        self.time += 1
        won = self.at == CELLS - 1
        return self.state(), 1.0 if won else -0.1, won or self.time == LIMIT


class Policy(meta.Model):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(CELLS, 24)
        self.actor = nn.Linear(24, 2)
        self.critic = nn.Linear(24, 1)

    def forward(self, state):
        h = meta.tanh(self.body(state))
        return meta.log_softmax(self.actor(h), axis=-1), self.critic(h).squeeze(-1)


def episode(env, policy):
    states, actions, rewards = [], [], []
    state, done = env.reset(), False
    while not done:
        with meta.no_grad():
            log_p, _ = policy(state)
        action = meta.random.multinomial(log_p.exp(), 1).item()
        states.append(state)
        actions.append(action)
        state, reward, done = env.step(action)
        rewards.append(reward)
    return meta.stack(states), meta.array(actions), rewards


def returns_of(rewards):
    total, out = 0.0, []
    for reward in reversed(rewards):
        total = reward + GAMMA * total
        out.insert(0, total)
    return meta.array(out)


def train(policy):
    env = Corridor()
    optimizer = meta.optim.Adam(policy.parameters(), lr=0.02)
    lengths = []
    for number in range(EPISODES):
        states, actions, rewards = episode(env, policy)
        returns = returns_of(rewards)
        log_p, value = policy(states)
        chosen = meta.take_along_axis(log_p, actions[:, None], axis=1).squeeze(1)
        advantage = (returns - value).detach()
        entropy = -(log_p.exp() * log_p).sum(axis=-1).mean()
        loss = -(chosen * advantage).mean() + meta.mse_loss(value, returns) - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lengths.append(len(rewards))
        if number % 20 == 0:
            print(f"episode {number}: {len(rewards)} steps, loss {loss.item():+.3f}")
    return lengths


if __name__ == "__main__":
    meta.random.seed(0)
    lengths = train(Policy())
    print(f"steps of the last ten: {sum(lengths[-10:]) / 10:.1f}")
