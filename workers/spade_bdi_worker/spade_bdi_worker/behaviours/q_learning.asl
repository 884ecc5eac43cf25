// Tabular Q-learning. Environment, exploration and the table are actions; what to do with them stands here.

+!act : state(S)
  <- .choose(S, A);            // mostly the best action, at random while exploring, the best one while evaluating
     .act(A, R, T);            // the reward, and the state that is perceived then
     .learn(S, A, R, T).
